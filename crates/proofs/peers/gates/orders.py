"""Orders behind fastidempotent and its Redis backend, as its README sets them up.

Usage: python orders.py PORT REDIS_URL
"""

import asyncio
import sys
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from fastidempotent import IdempotencyMiddleware, RedisBackend
from pydantic import BaseModel

port, url = int(sys.argv[1]), sys.argv[2]
backend = RedisBackend(url=url)
orders = []


@asynccontextmanager
async def lifespan(_app):
    await backend.init()
    yield


class Order(BaseModel):
    amount: int
    note: str


app = FastAPI(lifespan=lifespan)
app.add_middleware(IdempotencyMiddleware, backend=backend)


@app.post("/orders", status_code=201)
async def create(order: Order):
    await asyncio.sleep(0.004)
    orders.append({"id": len(orders) + 1, "note": order.note})
    return {"id": len(orders)}


@app.get("/orders")
async def found(note: str):
    return [order for order in orders if order["note"] == note]


uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
