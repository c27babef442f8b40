"""The agent of `tunewarden run`: carries out the service's orders on this host, and tells it what happens.

`python -E -P -m tunewarden.supervisor.agent RUN_DIR`, started by the keeper with their socket as descriptor 3.
"""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tunewarden.domain.cause import Cause
from tunewarden.domain.order import Phase
from tunewarden.domain.reason import Reason
from tunewarden.ports import Boundary, NoBoundary
from tunewarden.processes.identity import boot_id
from tunewarden.supervisor import endings, phases
from tunewarden.supervisor.client import Service
from tunewarden.supervisor.endings import Verdict
from tunewarden.supervisor.execution import Execution
from tunewarden.supervisor.final_name import give_planned_name
from tunewarden.supervisor.heartbeat import Heartbeat, Samples
from tunewarden.supervisor.host_watch import HostWatch
from tunewarden.supervisor.journal import Journal
from tunewarden.supervisor.keeper_link import KeeperLink
from tunewarden.supervisor.local_stop import stop_locally
from tunewarden.supervisor.order_poll import OrderPoll
from tunewarden.supervisor.orders import OrderRecord, parse_order, records
from tunewarden.supervisor.outbox import EVENT, Letter, Outbox
from tunewarden.supervisor.pushgateway import Pushgateway
from tunewarden.supervisor.registration import registration
from tunewarden.supervisor.run import Run
from tunewarden.supervisor.run_folder import RunFolder
from tunewarden.supervisor.service_watch import ServiceWatch
from tunewarden.supervisor.spec import RunSpec
from tunewarden.supervisor.started_by import StartedBy

KEEPER_FD = 3
_TICK_S = 0.5
_OBSERVE_S = 1.0
_GREETING_S = 30.0
_ACKNOWLEDGED_S = 3.0  # how long the end of a run may wait for the service to hear of it
_GONE_ON_WITH = "gone_on_with"
_SERVICE = "service"
_MOST_STARTS = 3  # of an agent, over one order
_GOODBYE_S = 1.0  # and the last heartbeat, where the service answers
_DELETED_S = 5.0  # and the series of the job at a Pushgateway that hangs
log = logging.getLogger(__name__)


class Agent:
    """The main thread's loop. Other threads talk to the service; only this one acts."""

    def __init__(self, folder: RunFolder, link: KeeperLink, boundary: Boundary) -> None:
        spec = RunSpec.read(folder)
        journal = Journal(folder.journal_file, boot_id=boot_id(), monotonic=time.monotonic)
        self._service = Service(spec.url, spec.token_file, spec.job_id)
        host = HostWatch(
            job_id=spec.job_id,
            simulate_gpu=spec.simulate_gpu,
            situation=link.situation,
            # A watcher is the parent of much that is none of the job's: the GUI, other jobs.
            keeper_pid=link.keeper.pid if link.keeper and spec.started_by is StartedBy.RUN else None,
            trainers=lambda: [process.pid for process in self.run.trainers()],
        )
        outbox = Outbox(self._service, journal, on_unknown_job=self._register_again, on_answer=link.wake)
        self.run = Run(
            spec=spec, folder=folder, journal=journal, link=link, outbox=outbox, host=host, boundary=boundary
        )
        samples = Samples(host, state=lambda: self.run.state, monotonic=time.monotonic)
        said = [entry.detail["said"] for entry in journal.notes(_SERVICE)]
        self._watch = ServiceWatch(spec.url, now=time.monotonic(), said=said[-1] if said else "")
        self._heartbeat = Heartbeat(
            self._service,
            every_s=spec.heartbeat_s,
            registration=lambda: registration(self.run),
            body=lambda: samples.body(self.run.watch()),
            watch=self._watch,
        )
        self._pushgateway = _pushgateway(spec, self._heartbeat)
        self._poll = OrderPoll(self._service, on_order=link.wake)
        self._records = records(journal.entries())
        self._observe_at = 0.0
        self._told_of_journal = False

    def work(self) -> int:
        """Until the run is over; returns this process's exit code."""
        self._greet()
        self._count_start()
        self._end_what_cannot_be_told()
        before = endings.told_before(self.run, self.run.situation.generation)
        self.run.waiting = before is not None and before.waits
        self.run.generation()  # journals how generation 1 was launched
        self._resend()
        self.run.outbox.start()
        self._heartbeat.start()
        if self._pushgateway is not None:
            self._pushgateway.start()
        self._poll.start()
        for record in [each for each in self._records.values() if not each.ended]:
            self._carry_out(record)
        verdict = self._live()
        return self._finish(verdict)

    def _greet(self) -> None:
        deadline = time.monotonic() + _GREETING_S
        while not self.run.situation.greeted and not self.run.situation.keeper_lost and time.monotonic() < deadline:
            self.run.pump(1.0)

    def _count_start(self) -> None:
        """First of all, so that whatever an order makes of us below, it does so a few times only."""
        for record in self._records.values():
            if not record.ended:
                self.run.journal.note(_GONE_ON_WITH, {"order_id": record.order.order_id})

    def _register_again(self) -> None:
        self._heartbeat.register_again()

    def _resend(self) -> None:
        """Reports and events that the service may not have: it keeps one each, so twice does no harm."""
        acked = {entry.order_id for entry in self.run.journal.entries() if entry.phase == EVENT}
        for record in self._records.values():
            for phase, body in record.reports.items():
                if phase == Phase.ACCEPTED and Phase.PLANNED in record.reports:
                    continue  # the plan says it too
                # A plan's report is sent by the phase that waits for its answer.
                if phase not in record.acked and (phase != Phase.PLANNED or "go" in record.outcomes):
                    self.run.outbox.put(Letter(id=record.order.order_id, phase=phase, body=body))
        for entry in self.run.journal.notes(EVENT):
            if entry.detail["event_id"] not in acked:
                self.run.outbox.put(Letter(id=entry.detail["event_id"], phase=EVENT, body=entry.detail))

    def _end_what_cannot_be_told(self) -> None:
        """After a reboot, with a damaged journal, or over an order that kills us: ended, never guessed."""
        starts = [entry.detail["order_id"] for entry in self.run.journal.notes(_GONE_ON_WITH)]
        for record in self._records.values():
            if record.ended:
                continue
            if starts.count(record.order.order_id) > _MOST_STARTS:
                text = f"the agent died {_MOST_STARTS} times over this order; see agent.log in {self.run.folder.path}"
                self._refuse(record, Reason.AGENT_RESTARTED, text)
            elif record.boot_id != boot_id():
                self._refuse(record, Reason.HOST_REBOOTED, "the host was started again meanwhile")
            elif self.run.journal.damaged:
                self._refuse(record, Reason.AGENT_RESTARTED, "the journal is damaged: what was begun can't be told")

    def _refuse(self, record: OrderRecord, reason: Reason, text: str) -> None:
        phases.end(Execution(run=self.run, record=record), Phase.REFUSED, reason, text)

    def _live(self) -> Verdict:
        """One turn after another, until the job has ended and nothing more will be launched."""
        while True:
            self._tick()
            situation = self.run.situation
            if situation.interrupts:
                stop_locally(self.run)
                return endings.judge(self.run, self._records.values())
            if situation.ended:
                verdict = self._after_end()
                if verdict is not None:
                    return verdict
                continue
            self._take_order()
            if not situation.ended and not situation.interrupts:
                self.run.pump(_TICK_S)

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._observe_at:
            return
        self._observe_at = now + _OBSERVE_S
        self._tell_of_service(now)
        self._tell_of_journal()
        if self.run.observe():
            self._heartbeat.register_again()  # who speaks, its ranks and its knobs are known now
        self.run.deaths.look(self.run)
        endings.check_resumed(self.run)

    def _tell_of_journal(self) -> None:
        """Once: what a person does here needs no journal, what the service orders does."""
        trouble = self.run.journal.trouble
        if trouble and not self._told_of_journal:
            self._told_of_journal = True
            journal = self.run.folder.journal_file
            self.run.say(f"{journal} can't be written ({trouble}): orders are refused until it can")

    def _tell_of_service(self, now: float) -> None:
        news = self._watch.news(now)
        if news is not None:
            said, line = news
            self.run.journal.note(_SERVICE, {"said": said})  # first: an agent after us doesn't repeat it
            self.run.say(line)

    def _take_order(self) -> bool:
        """Carry out an order if one has come. Whether one had."""
        self._poll.open_for(self.run.situation.generation)
        raw = self._poll.take()
        if raw is None:
            return False
        try:
            order = parse_order(raw)
        except ValueError as error:
            log.error("%s", error)
            return False
        known = self._records.get(order.order_id)
        if known is not None:
            self._report_again(known)
            return False
        record = phases.accept(self.run, order, raw)
        self._records[order.order_id] = record
        self._carry_out(record)
        return True

    def _report_again(self, record: OrderRecord) -> None:
        """The service asks for what was done already: it has not taken our last report."""
        phase, body = list(record.reports.items())[-1]
        self.run.outbox.put(Letter(id=record.order.order_id, phase=phase, body=body))
        self.run.outbox.flush(_ACKNOWLEDGED_S)

    def _carry_out(self, record: OrderRecord) -> None:
        phases.carry_out(self.run, record)
        if "launch" in record.outcomes:
            self.run.waiting = False
            self.run.keep_count(record.order.generation)
            self._tell_replaced(record)
            self._heartbeat.register_again()
        # The next poll would find this order open still if it came before the last report.
        self.run.outbox.flush(_ACKNOWLEDGED_S)

    def _tell_replaced(self, record: OrderRecord) -> None:
        if record.order.after_oom:
            return  # its end was told when it died
        text = f"replaced by generation {record.order.generation + 1}"
        verdict = Verdict(cause=Cause.REPLACED, evidence=text, exit_code=0, waits=False)
        endings.tell(self.run, verdict, generation=record.order.generation)

    def _after_end(self) -> Verdict | None:
        """Tell the end; wait for an order where one may come. None: the next generation is launched."""
        situation = self.run.situation
        self.run.finish_drain()
        self.run.keep_count(situation.generation)
        before = endings.told_before(self.run, situation.generation)
        verdict = before or endings.judge(self.run, self._records.values())
        event_id = endings.tell(self.run, verdict)
        if verdict.cause is Cause.FINISHED:
            give_planned_name(self.run)
        if not verdict.waits or situation.keeper_lost:
            return verdict
        if before is None:
            self.run.say(endings.waiting_line(verdict, situation.generation))
        deadline = self._event_at(event_id) + endings.WAITS_S
        generation = situation.generation
        self.run.waiting = True
        self._wait_for_order(event_id, deadline)
        self.run.waiting = False
        if situation.generation > generation:
            return None
        if not situation.interrupts:
            self.run.say("nobody brings it back: ended")
        return verdict

    def _event_at(self, event_id: str) -> float:
        return next(entry.at for entry in self.run.journal.notes(EVENT) if entry.detail["event_id"] == event_id)

    def _wait_for_order(self, event_id: str, deadline: float) -> None:
        """Until an order has launched the next generation, a person stops it, or none will come."""
        situation = self.run.situation
        generation = situation.generation
        heard_by = time.monotonic() + _ACKNOWLEDGED_S
        while time.monotonic() < deadline and not situation.interrupts and not situation.keeper_lost:
            if situation.generation > generation:  # launched after all, late, for an order that had given it up
                self._heartbeat.register_again()
                return
            answer = self.run.outbox.answer(event_id, EVENT)
            if answer is None and time.monotonic() >= heard_by:
                return  # the service is away: the job's end is not held up
            if answer is not None and answer.get("wait") is False:
                return
            if self._take_order() and situation.generation > generation:
                return
            self.run.pump(0.1)

    def _finish(self, verdict: Verdict) -> int:
        """Tell the end, let the keeper go, and go."""
        run = self.run
        if endings.told_before(run, run.situation.generation) is None:
            endings.tell(run, verdict)
        self._tell_of_journal()
        run.over = True
        self._poll.close()
        told_at = max(entry.at for entry in run.journal.notes(EVENT))
        if run.outbox.flush(max(0.0, told_at + _ACKNOWLEDGED_S - time.monotonic())):
            self._heartbeat.close(_GOODBYE_S)
        if self._pushgateway is not None:
            self._pushgateway.close(_DELETED_S)
        code = endings.STOPPED_BY_PERSON if run.situation.interrupts else verdict.exit_code
        log.info("the run is over: %s, exit code %d", verdict.cause, code)
        run.link.finish(code)
        return 0


def _pushgateway(spec: RunSpec, heartbeat: Heartbeat) -> Pushgateway | None:
    if spec.pushgateway is None:
        return None
    return Pushgateway(spec.pushgateway, spec.job_id, newest=lambda: heartbeat.newest)


def main(argv: Sequence[str], boundary: Boundary | None = None, descriptor: int = KEEPER_FD) -> int:
    """Run the agent of the run folder `argv[0]`; returns the exit code. Tests pass a boundary that kills."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    for signum in (signal.SIGINT, signal.SIGHUP):  # the keeper counts them, and tells us
        signal.signal(signum, signal.SIG_IGN)
    link = KeeperLink(descriptor)
    return Agent(RunFolder(Path(argv[0])), link, boundary or NoBoundary()).work()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
