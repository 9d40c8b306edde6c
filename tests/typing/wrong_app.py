"""The same app called wrongly: each wrong line ends with what a type checker must report there, and nowhere else."""

from tests.typing.right_app import Receipt, app, nothing, plain, send_email

plain("1")  # error: [arg-type]
plain.enqueue("1")  # error: [arg-type]
plain.enqueue()  # error: [call-arg]
send_email.enqueue("a", "b", "c")  # error: [call-arg]
plain.enqueue(1, laud=True)  # error: [call-arg]
plain.enqueue(1, loud="yes")  # error: [arg-type]
nothing.enqueue(1)  # error: [call-arg]
send_email.enqueue(5)  # error: [arg-type]
send_email.enqueue("a", cc="b")  # error: [call-arg]
send_email.enqueue(subject="b")  # error: [call-arg]
plain.describe(None)  # error: [arg-type]

plain.using(delay=60).enqueue("1")  # error: [arg-type]
plain.using(delay=60).enqueue()  # error: [call-arg]
plain.using(delay=60).enqueue(1, laud=True)  # error: [call-arg]
plain.using(dealy=60).enqueue(1)  # error: [call-arg]
plain.using(priority=1.5).enqueue(1)  # error: [arg-type]

number: int = plain.enqueue(1).result()  # error: [assignment]
letter: str = send_email.enqueue("a").result()  # error: [assignment]
street: str = send_email.enqueue("a").result().street  # error: [attr-defined]
direct: Receipt = send_email("a")  # error: [assignment]


async def wrong() -> None:
    await send_email.aenqueue(5)  # error: [arg-type]
    await send_email.aenqueue()  # error: [call-arg]
    await send_email.aenqueue("a", cc="b")  # error: [call-arg]
    await send_email.using(delay=1).aenqueue(to=5)  # error: [arg-type]
    await send_email.using(delay=1).aenqueue("a", cc="b")  # error: [call-arg]
    number: int = await (await send_email.aenqueue("a")).aresult()  # error: [assignment]
    other: int = await (await plain.using(max_retries=1).aenqueue(1)).aresult()  # error: [assignment]
    plain.aenqueue(1)  # error: [unused-coroutine]
    del number, other


@app.task(retrys=3)  # error: [call-overload, untyped-decorator]
def misspelt() -> None: ...


@app.task(priority=2.5)  # error: [call-overload, untyped-decorator]
def halfway() -> None: ...
