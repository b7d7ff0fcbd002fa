"""The wait queue of the client wakes its tasks in order."""

import asyncio

from querator.client.transport.wait_queue import WaitQueue


async def standing(line: WaitQueue, count: int) -> list["asyncio.Task[None]"]:
    """Tasks that wait in the wait queue, in order."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.get_running_loop().create_task(line.wait()))
        await asyncio.sleep(0)
    assert len(line) == count
    return tasks


async def test_turns_come_in_order():
    line = WaitQueue()
    tasks = await standing(line, 3)
    line.wake(2)
    await asyncio.wait(tasks[:2])
    assert [task.done() for task in tasks] == [True, True, False]
    assert len(line) == 1
    line.wake_all()
    await asyncio.wait(tasks)
    line.wake(5)
    assert not len(line)


async def test_who_could_not_use_a_turn_is_the_first_again():
    line = WaitQueue()
    tasks = await standing(line, 1)
    again = asyncio.get_running_loop().create_task(line.wait(first=True))
    await asyncio.sleep(0)
    line.wake(1)
    await again
    assert not tasks[0].done()
    line.wake_all()
    await tasks[0]


async def test_a_turn_that_is_not_used_is_passed_on():
    line = WaitQueue()
    tasks = await standing(line, 3)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    line.wake(1)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert tasks[1].cancelled()
    assert not tasks[2].cancelled()
