"""The yardstick: what FastAPI and uvicorn can do when nothing is stored. Frozen: do not change it."""

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel


class Payload(BaseModel):
    version: str
    groupKey: str
    alerts: list[dict[str, Any]]


app = FastAPI()


@app.post("/api/v1/alertmanager", status_code=202)
async def alertmanager(request: Request) -> Response:
    Payload.model_validate_json(await request.body())
    return Response(b'{"status":"accepted"}', 202, media_type="application/json")
