import json
import os
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, Request

from querator import Client


@asynccontextmanager
async def lifespan(app: FastAPI):
    address = os.environ["QUERATOR_ADDRESS"]
    async with Client(address, request_timeout=timedelta(seconds=5)) as client:
        app.state.queue = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/sign-up", status_code=202)
async def sign_up(email: str, request: Request):
    await request.app.state.queue.produce("mail", json.dumps({"to": email}))
    return "we write to you"
