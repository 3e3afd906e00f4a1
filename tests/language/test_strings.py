"""Strings: methods, f-strings, formatting, and control flow on them."""

import enum
import re
import string

import pytest
import torch

import quickfuse
from language.harness import BACKENDS, case, check, names, t


@case((t(2, 3), "Layer"), (t(2, 3), "other name"), (t(4, 3), ""))
def f_strings(x, name):
    text = f"{name!r} has {x.shape[0]}x{x.size(1)} of {x.dtype}, {name:>8}|{name:<8}|{name:^8}|{3.14159:.2f}|{42:05d}"
    y = (x * len(text)).sin() + len(name)
    return y, text, f"{x.ndim=}", f"{x.shape}", f"{{{len(name)}}}", f"{1_000_000:,} {0.25:.0%} {255:#x} {1e10:e}"


@case((t(3), 3), (t(3), 12))
def f_strings_with_nested_specs(x, width):
    y = (x + width).exp() / width - x
    letter = f"{'q' if width > 5 else 'p'}"
    return y, f"{'a':*^{width}}", f"{2.5:{width}.{2}f}", f"{[k * 2 for k in range(3)]}", f"{width + 1!s:>4}", letter


@case((t(3), "a,b;c"), (t(3), "x"), (t(3), "  pad,  "))
def methods(x, text):
    parts = text.strip().replace(";", ",").split(",")
    y = x * len(parts) + text.count(",")
    return y, parts, text.upper(), text.title(), text.partition(","), text.startswith("a"), text.find("c"), "-".join(parts)


@case((t(3), "conv1.weight"), (t(3), "bn.bias"), (t(3), "head"))
def names_of_parameters(x, name):
    module, _, kind = name.rpartition(".")
    if name.endswith(".weight"):
        x = x * 0.9
    elif "bias" in name:
        x = x - 0.1
    return x.sin(), module or "root", kind, name.split(".")[-1], name.removesuffix(".weight"), name.removeprefix("conv1.")


@case((t(3), "relu"), (t(3), "tanh"), (t(3), "sigmoid"))
def operator_by_name(x, name):
    y = getattr(torch, name)(x)
    method = getattr(x, name)
    return y + method(), getattr(torch.nn.functional, name)(x) * 2, name.capitalize()


@case((t(3), "abc", 1), (t(3), "hello", 3))
def indexing_and_slicing(x, text, k):
    total = x
    for position, letter in enumerate(text):
        total = total + ord(letter) * 0.01 * position
    return total, text[k], text[::-1], text[1:k], text[-1], text * 2, len(text), "b" in text, min(text), sorted(text)


@case((t(3), 7), (t(3), -1))
def old_formatting(x, n):
    text = "%d items, %s, %.3f, %5s|%-5s|%x" % (n, "str", n / 3, "r", "l", abs(n))
    other = "{} {0}".replace("{0}", "{}").format(n, "b") + "{name}-{0!r:>5}".format("q", name=n)
    y = (x + len(text)).cos() * n
    return y, text, other, "%(a)s" % {"a": n}, "{0[1]} {1.ndim}".format([1, 2], x)


@case((t(3), "Abc1"), (t(3), "123"), (t(3), " "))
def predicates(x, text):
    if text.isdigit():
        x = x + int(text)
    elif text.isalnum():
        x = x * 2
    return x.exp(), text.isalpha(), text.isspace(), text.islower(), text.casefold(), text.swapcase(), text.zfill(5)


@case((t(3), "line one\nline two"), (t(3), "single"))
def splitting_lines(x, text):
    lines = text.splitlines()
    words = [len(w) for line in lines for w in line.split()]
    y = (x * sum(words)).tanh() + len(lines)
    return y, lines, words, text.expandtabs(), text.center(20, "."), text.encode(), "a|b|c".rsplit("|", 1)


@case((t(3), "a", "b"), (t(3), "b", "a"), (t(3), "a", "a"))
def comparisons(x, a, b):
    if a < b:
        x = x + 1
    elif a == b:
        x = x * 3
    return x.tanh(), a != b, max(a, b), a + b, hash(a) == hash(b), a is a, [a, b].index(b)


@case((t(3), "w12_b3"), (t(3), "none"))
def regular_expressions(x, text):
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    match = re.match(r"(?P<kind>[a-z]+)(\d*)", text)
    y = x + sum(numbers)
    return y * 2, match.group("kind"), match.groups(), re.sub(r"\d", "#", text), bool(re.search("z", text))


@case((t(3), 5), (t(3), 6))
def building_strings(x, n):
    out = ""
    for k in range(n):
        out += str(k) if k % 2 else "."
    table = str.maketrans({"1": "one", ".": None})
    filled = string.Template("$a").substitute(a=n)
    y = (x * len(out)).sin() - n
    return y, out, out.translate(table), string.ascii_lowercase[:n], "".join(reversed(out)), filled


@case((t(3), "é€"), (t(3), "naïve"))
def unicode(x, text):
    data = text.encode("utf-8")
    y = x + len(data) - len(text)
    return y * 2, data, data.decode(), text.encode("ascii", "replace"), repr(text), [ord(c) for c in text]


@case((t(2, 3),), (t(4, 3),))
def text_of_metadata(x):
    y = x.t() + 1
    text = f"{tuple(y.shape)} {y.stride()} {y.dtype} {y.device} {y.is_contiguous()} {y.numel()} {type(y).__name__}"
    return y * 2, text, str(x.shape), repr(x.dtype), str(x.device), str(torch.Size([1, 2]))


@case((t(3), "no number"), (t(3), "4"))
def errors_of_strings(x, text):
    messages = []
    for attempt in (lambda: int(text), lambda: text + 1, lambda: text[99], lambda: text.index("~"), lambda: "%d" % text):
        try:
            x = x + (attempt() or 0)
        except (ValueError, TypeError, IndexError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return (x * len(messages)).exp() + x, messages


class Kind(str, enum.Enum):
    MEAN = "mean"
    SUM = "sum"

    def __str__(self):
        return self.value


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

    def __repr__(self):
        return f"<{self.name.lower()}>"

    def __format__(self, spec):
        return f"{self.name}/{spec}"


class Mode(enum.Enum):
    FAST = "fast"

    def __str__(self):
        return "mode " + self.name


@case((t(3), Kind.MEAN, Level.LOW), (t(3), Kind.SUM, Level.HIGH), (t(3), Kind.MEAN, Level.HIGH))
def texts_of_enumerations(x, kind, level):
    if str(kind) == str(Kind.MEAN):
        x = x * 2
    texts = f"{kind}|{kind!r}|{level}|{level:>3}|{level!r}|{Mode.FAST}|{Mode.FAST!r}", "%s %s" % (kind, Mode.FAST)
    return x + len(repr(level)), texts, str(Mode.FAST), format(Kind.SUM)


@case((t(3), Level.LOW), (t(3), Level.HIGH))
def texts_that_enumerations_inherit(x, level):
    return x + len(str(level)), str(Level.LOW), repr([Mode.FAST, level]), str({level: Kind.SUM})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_strings(name, backend):
    check(__file__, name, backend)


def test_texts_of_enumerations_are_one_graph():
    compiled = quickfuse.compile(texts_of_enumerations, fullgraph=True)
    for arguments in ((t(3), Kind.MEAN, Level.LOW), (t(3), Kind.SUM, Level.HIGH)):
        assert str(compiled(*arguments)) == str(texts_of_enumerations(*arguments))
