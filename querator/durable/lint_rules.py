"""What a durable function must not call or iterate over by itself, for `lint`.

What a name stands for is known by the object, whatever the name: `from time import time as clock`
is found, and another function of the name `time` is not.
"""

import ast
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

_CLOCK: Final = "reads the clock; use now() of querator.durable, or a step"
_CHANCE: Final = "draws by chance; use random() or uuid() of querator.durable, or a step"
_OUTSIDE: Final = "differs between processes; give it as an argument, or read it in a step"
_THREAD: Final = "begins a thread or a process; do it in a step"
_NETWORK: Final = "uses the network; do it in a step"
_FILE: Final = "reads or writes outside of the execution; do it in a step"
_BLOCKS: Final = "blocks all executions of the worker; use sleep() of querator.durable"

_HTTP: Final = "get post put patch delete head options request"
_FUNCTIONS: Final = (
    ("time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time",
     _CLOCK),
    ("time", "sleep", _BLOCKS),
    ("random", "random randint randrange randbytes getrandbits choice choices sample shuffle "
     "uniform triangular gauss normalvariate expovariate betavariate SystemRandom", _CHANCE),
    ("secrets", "token_bytes token_hex token_urlsafe choice randbelow randbits", _CHANCE),
    ("uuid", "uuid1 uuid4", _CHANCE),
    ("uuid_utils", "uuid1 uuid4 uuid6 uuid7", _CHANCE),
    ("os", "urandom", _CHANCE),
    ("os", "getenv getpid listdir scandir", _OUTSIDE),
    ("socket", "socket create_connection create_server getaddrinfo gethostbyname", _NETWORK),
    ("socket", "gethostname", _OUTSIDE),
    ("urllib.request", "urlopen urlretrieve", _NETWORK),
    ("http.client", "HTTPConnection HTTPSConnection", _NETWORK),
    ("requests", f"{_HTTP} Session", _NETWORK),
    ("httpx", f"{_HTTP} Client AsyncClient", _NETWORK),
    ("threading", "Thread Timer", _THREAD),
    ("concurrent.futures", "ThreadPoolExecutor ProcessPoolExecutor", _THREAD),
    ("multiprocessing", "Process Pool", _THREAD),
    ("subprocess", "run Popen call check_call check_output", _THREAD),
    ("os", "system popen fork", _THREAD),
    ("builtins", "open input", _FILE),
)  # fmt: skip
_METHODS: Final = (
    ("datetime", "datetime", "now utcnow today", _CLOCK),
    ("datetime", "date", "today", _CLOCK),
)
_VALUES: Final = (("os", "environ", _OUTSIDE), ("os", "environb", _OUTSIDE))

_ANY_ORDER: Final = {"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len"}
_IN_ORDER: Final = {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "reversed"}
_MAKES_SETS: Final = {
    "union", "intersection", "difference", "symmetric_difference", "copy",
}  # fmt: skip
_MAKES_TASKS: Final = {"create_task", "ensure_future", "spawn"}
_SET_OPERATORS: Final = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
_ORDERED: Final = (int, float, type(None))
"""Types of values whose hash is the same in each process."""

UNKNOWN: Final = object()
Resolve = Callable[[ast.expr], Any]
"""What an expression stands for, or UNKNOWN."""


def _known(tables: Iterable[tuple[str, str, str]]) -> dict[int, tuple[Any, str, str]]:
    """Objects by their identity, with their names and what is wrong with them. Modules that the
    program has not imported have no objects that it could use.
    """
    found: dict[int, tuple[Any, str, str]] = {}
    for module, names, why in tables:
        there = sys.modules.get(module)
        for name in names.split():
            value = getattr(there, name, None)
            if value is not None:
                owner = "" if module == "builtins" else f"{module}."
                found[id(value)] = value, f"{owner}{name}", why
    return found


class CallRules:
    """What is wrong with a call, or with a value that is read."""

    def __init__(self) -> None:
        self._functions = _known(_FUNCTIONS)
        self._values = _known(_VALUES)

    def of_call(self, call: ast.Call, resolve: Resolve) -> str:
        """Empty: nothing is known of it."""
        called = resolve(call.func)
        if (found := self._functions.get(id(called))) is not None:
            return f"{found[1]}() {found[2]}"
        if not isinstance(call.func, ast.Attribute):
            return ""
        owner, name = resolve(call.func.value), call.func.attr
        for module, kind, names, why in _METHODS:
            base = getattr(sys.modules.get(module), kind, None)
            if isinstance(owner, type) and base is not None and issubclass(owner, base):
                if name in names.split():
                    return f"{kind}.{name}() {why}"
        random = sys.modules.get("random")
        if random is not None and owner is random and name == "Random" and not call.args:
            return f"random.Random() without a seed {_CHANCE}"
        return ""

    def of_value(self, node: ast.expr, resolve: Resolve) -> str:
        found = self._values.get(id(resolve(node)))
        return "" if found is None else f"{found[1]} {found[2]}"


class Bindings(ast.NodeVisitor):
    """What a function assigns to its names, also in functions within it. `unclear` are names that
    also get values in other ways.
    """

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.values: dict[str, list[ast.expr]] = {}
        self.added: dict[str, list[ast.expr]] = {}
        self.unclear: set[str] = set()
        self.annotations: dict[str, ast.expr] = {}
        self.names: set[str] = set()
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._outer = function
        self.visit(function)
        self.names |= self.values.keys() | self.unclear

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        # What a set becomes by `|=` is a set.
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._unclear(node.target)
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._unclear(node.target)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._unclear(node.target)
        self.generic_visit(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self._unclear(node.optional_vars)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.unclear.add(node.name)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._define(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._define(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.unclear.add(node.name)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._parameters(node.args)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.imports.append(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports.append(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[value]):
                self.added.setdefault(name, []).append(value)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.unclear.add(node.name)
        self.generic_visit(node)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node is not self._outer:
            self.unclear.add(node.name)
        self._parameters(node.args)
        self.generic_visit(node)

    def _parameters(self, args: ast.arguments) -> None:
        for one in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if one is None:
                continue
            self.names.add(one.arg)
            if one.annotation is not None and one not in (args.vararg, args.kwarg):
                self.annotations[one.arg] = one.annotation
            else:
                self.unclear.add(one.arg)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)
        else:
            self._unclear(target)

    def _unclear(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.unclear.add(node.id)


class SetRules:
    """Which expressions are sets whose order is another one in each process."""

    def __init__(self, bindings: Bindings, resolve: Resolve) -> None:
        self._bindings = bindings
        self._resolve = resolve

    def is_set(self, node: ast.expr, deep: int = 8) -> bool:
        """Whether it is certainly one. Sets of tasks iterate in the order of their creation, and
        numbers hash alike everywhere.
        """
        if not deep:
            return False
        match node:
            case ast.Set(elts=elements):
                return not all(self._is_ordered(one) for one in elements)
            case ast.SetComp(elt=element):
                return not self._is_task(element)
            case ast.BinOp(left=left, op=operator, right=right):
                return isinstance(operator, _SET_OPERATORS) and (
                    self.is_set(left, deep - 1)
                    or _is_view(left)
                    or (self.is_set(right, deep - 1) and not isinstance(operator, ast.Sub))
                )
            case ast.IfExp(body=body, orelse=other):
                return self.is_set(body, deep - 1) or self.is_set(other, deep - 1)
            case ast.Call(func=ast.Attribute(value=value, attr=attribute)):
                return attribute in _MAKES_SETS and self.is_set(value, deep - 1)
            case ast.Call(func=called, args=args):
                if not self._is_of(called, set, frozenset):
                    return False
                return not (args and self._holds_tasks(args[0], deep - 1))
            case ast.Name(id=name) if name in self._bindings.names:
                return self._is_local_set(name, deep - 1)
            case ast.Name() | ast.Attribute():
                return _differs(self._resolve(node))
        return False

    def _is_local_set(self, name: str, deep: int) -> bool:
        bindings = self._bindings
        if name in bindings.unclear:
            return False
        if any(self._is_task(one) for one in bindings.added.get(name, ())):
            return False
        values = bindings.values.get(name, [])
        if name in bindings.annotations:
            return self._is_set_type(bindings.annotations[name]) and not values
        return bool(values) and all(self.is_set(one, deep) for one in values)

    def _is_set_type(self, annotation: ast.expr) -> bool:
        match annotation:
            case ast.Subscript(value=value, slice=element):
                is_set = self._is_of(value, set, frozenset)
                return is_set and not self._is_of(element, int, bool, float)
            case ast.Constant(value=str(text)):
                try:
                    return self._is_set_type(ast.parse(text, mode="eval").body)
                except SyntaxError:
                    return False
        return self._is_of(annotation, set, frozenset)

    def _is_of(self, node: ast.expr, *kinds: type) -> bool:
        """By identity: what a name stands for may be anything, and compare as it likes."""
        value = self._resolve(node)
        return any(value is kind for kind in kinds)

    def _holds_tasks(self, node: ast.expr, deep: int) -> bool:
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return all(self._is_ordered(one) for one in elements)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self._is_task(element)
            case ast.Call(func=called) if self._resolve(called) is range:
                return True
            case ast.Name(id=name) if deep and name in self._bindings.values:
                values = self._bindings.values[name]
                return all(self._holds_tasks(one, deep - 1) for one in values)
        return False

    def _is_ordered(self, node: ast.expr) -> bool:
        is_number = isinstance(node, ast.Constant) and isinstance(node.value, _ORDERED)
        return is_number or self._is_task(node)

    def _is_task(self, node: ast.expr, deep: int = 4) -> bool:
        match node:
            case ast.Await(value=value):
                return self._is_task(value, deep)
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                return name in _MAKES_TASKS
            case ast.Name(id=name) if deep and name in self._bindings.values:
                return all(self._is_task(one, deep - 1) for one in self._bindings.values[name])
        return False

    # --- where an order is taken -------------------------------------------------------------

    def taken_by(self, node: ast.AST) -> Iterable[ast.expr]:
        """The sets whose order a node takes."""
        found: list[ast.expr] = []
        match node:
            case ast.For(iter=iterated):
                found.append(iterated)
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
                found += [one.iter for one in node.generators]
            case ast.SetComp() if any(isinstance(one, ast.Await) for one in ast.walk(node)):
                found += [one.iter for one in node.generators]
            case ast.Starred(value=value):
                found.append(value)
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                found.append(value)
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                found.append(value)
            case ast.Call(func=ast.Attribute(attr="join"), args=[value]):
                found.append(value)
            case ast.Call(func=ast.Name(id=name) as called, args=args) if name in _IN_ORDER:
                if self._resolve(called) is getattr(_BUILTINS, name):
                    found += args
        return [one for one in found if self.is_set(one)]

    def is_any_order(self, call: ast.Call) -> bool:
        """Whether a call gives the same for each order of its argument."""
        match call:
            case ast.Call(func=ast.Name(id=name) as called, args=[argument, *_]):
                return (
                    name in _ANY_ORDER
                    and self._resolve(called) is getattr(_BUILTINS, name)
                    and not any(isinstance(one, ast.Await) for one in ast.walk(argument))
                )
        return False

    def as_completed_of_coroutines(self, call: ast.Call) -> bool:
        """Whether `as_completed` is given what it makes tasks of, in the order of a set."""
        asyncio = sys.modules.get("asyncio")
        called = getattr(asyncio, "as_completed", UNKNOWN)
        if self._resolve(call.func) is not called or not call.args:
            return False
        return self._holds_coroutines(call.args[0])

    def _holds_coroutines(self, node: ast.expr, deep: int = 4) -> bool:
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return any(self._is_coroutine(one) for one in elements)
            case (
                ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element)
            ):
                return self._is_coroutine(element)
            case ast.Name(id=name) if deep and name not in self._bindings.unclear:
                values = self._bindings.values.get(name, [])
                return any(self._holds_coroutines(one, deep - 1) for one in values)
        return False

    def _is_coroutine(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and not self._is_task(node)


_BUILTINS: Final = sys.modules["builtins"]


def _is_view(node: ast.expr) -> bool:
    """`one.keys()`, whose difference with another one is a set."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("keys", "items")
    )


def _differs(value: object) -> bool:
    return (
        isinstance(value, set | frozenset)
        and len(value) > 1
        and not all(isinstance(one, _ORDERED) for one in value)
    )
