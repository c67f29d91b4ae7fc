"""What stands between a visitor and the machine: sentences in place of failures, local files alone, one known host."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gradio as gr
from gradio.data_classes import ImageData
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gramloop.app.memory import tidy
from gramloop.app.words import notice
from gramloop.errors import GramLoopError

P = ParamSpec("P")
C = TypeVar("C", bound=gr.components.Component)
# of a list that changes: what was chosen from the list before is refused by whoever takes it, in a sentence
UNCHECKED: Mapping[str, Any] = {"allow_custom_value": True}
# nothing of the page may come from, or go to, another host; the page itself is full of inline scripts and styles
POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; "
    "form-action 'self'; base-uri 'self'; frame-ancestors 'self'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def image_input(**options: Any) -> gr.Image:
    """An image that is uploaded, given on as the path of its file: nothing is decoded here, and nothing is fetched.

    A class of its own would say it more plainly, but gradio writes a file beside every new class.
    """
    image = gr.Image(type="filepath", **options)
    keep = image.async_move_resource_to_block_cache

    def path_of(payload: ImageData | None) -> str | None:
        """The path below the folder of uploads, which was checked before."""
        return None if payload is None or payload.path is None else str(Path(payload.path))

    async def keep_files(found: str | Path | None) -> str | None:
        """Refuse addresses: whoever names one would have this machine ask for it."""
        if "://" in str(found):
            raise gr.Error("Images are uploaded; addresses are not fetched.", print_exception=False)
        return await keep(found)

    vars(image).update(preprocess=path_of, async_move_resource_to_block_cache=keep_files)
    return image


def sentences(do: Callable[P, str]) -> Callable[P, str]:
    """The HTML of a function, or a sentence about why there is none. What nobody foresaw is told to the terminal."""

    @wraps(do)
    def safely(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return do(*args, **kwargs)
        except GramLoopError as error:
            return notice(str(error))
        except MemoryError:
            return notice("this machine has not enough memory for that; try a smaller image")
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return notice("this failed in a way nobody foresaw; the terminal in which the app runs says more")
        finally:
            tidy()

    return safely


def as_sent(control: C) -> C:
    """A number as a visitor sent it, for whoever takes it to refuse in a sentence.

    Gradio refuses what is beyond a control's limits with a traceback in the terminal and no word on the page. A control
    that is updated by another of its kind loses this; one that is updated by a plain value keeps it.
    """
    vars(control).update(preprocess=lambda value: value)
    return control


def as_text(control: C) -> C:
    """A choice as a visitor sent it, as text; where several can be chosen, a list. See `as_sent`."""
    several = bool(getattr(control, "multiselect", False))

    def read(value: object) -> object:
        if several and isinstance(value, list):
            return [str(each) for each in value]
        return None if value is None else str(value)

    vars(control).update(preprocess=read)
    return control


class Shield:
    """Answers only those who call the page by its own name, and tells browsers to ask nobody else.

    hosts: names that the page may be called by; empty for any. A foreign web site that makes its own name point at
    this machine is thereby refused.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._hosts and _host(scope) not in self._hosts:
            await _refuse(send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(each for each in _HEADERS if each[0] not in names),
                ]
            await send(message)

        await self._app(scope, receive, marked)


def _host(scope: Scope) -> str:
    """The name that a request gives this machine, without a port."""
    given = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    name = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
    return name.strip("[]").lower()


async def _refuse(send: Send) -> None:
    headers: list[Any] = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": b"This page has another address.\n"})
