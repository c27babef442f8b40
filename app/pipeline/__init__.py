"""The stages: decide, act, verify, report. They meet only in the store; none calls another."""
