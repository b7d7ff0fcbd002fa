import json
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from querator import Client


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with Client(os.environ["QUERATOR_ADDRESS"]) as client:
        app.state.queue = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/sign-up", status_code=202)
async def sign_up(email: str, request: Request):
    await request.app.state.queue.produce("mail", json.dumps({"to": email}))
    return "we write to you"
