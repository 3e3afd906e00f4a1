"""What to write instead: from the reason of a graph break to advice for the program."""

from __future__ import annotations

import re

#: (pattern that the reason matches, advice), the first match counts.
_TABLE: list[tuple[str, str]] = [
    (
        r"^a branch on a tensor's value|^the tensor method __bool__|^comparing tensors, or numbers",
        "compute both sides and choose with torch.where(condition, this, that), or decide by numbers that are no tensors",
    ),
    (r"^print\b", "print before or after the compiled function, or return the value and print it there"),
    (
        r"^a tensor's contents|^a tensor's value as a number|^the text of a Tensor|^item\(\) of|^the number in a tensor"
        r"|number from a tensor|tensor's number|^round\(\) of a tensor|^(hashing|iterating over) a Tensor",
        "keep it a tensor: tensor arithmetic needs neither .item() nor .tolist() nor .numpy()",
    ),
    (r"random numbers|^the native function (random|randint|uniform|gauss|choice|sample|shuffle|torch\..*seed)\b|a Random$",
     "draw random numbers before the call and pass them as arguments, or draw them with torch.rand and torch.randn"),
    (r"^the native function (time|datetime)\.|\bdatetime\b|^the native function .*(perf_counter|monotonic)",
     "read the clock before the call and pass the time as an argument"),
    (
        r"depends on a tensor's contents|^no shape rule for (getitem|nonzero|masked_select|unique|argwhere|where|bincount)"
        r"|^an index that is a mask|^assignment to elements that a tensor selects",
        "the size of the result depends on data: keep all elements and mask them, torch.where(mask, x, 0)",
    ),
    (r"^a tensor that has other sizes", "pad it to a size, and leave out by a mask what was added"),
    (r"^backward\(\)", "call backward() outside of the compiled function, on the loss that it returns"),
    (r"^operands on several devices", "move tensors to their device before the call"),
    (r"^changing whether|^a tensor .*begins or ends to require|^registering a hook|^retain_grad",
     "prepare the tensor before the compiled function is called"),
    (r"^autocast|^an active torch function or dispatch mode|^forward-mode|^a tensor inside a functional transform",
     "compile a function inside, that is called within the context, or leave this part uncompiled"),
    (r"^the first import of", "import it at the top of the file"),
    (r"^advancing an iterator from outside",
     "a break inside the loop leads to this one; otherwise, make a list of what the loop goes through"),
    (r"^a long loop without tensors", "compute the result of the loop once, outside of the compiled function"),
    (r"^a loop of many (training steps|turns)", "compile the function of one turn; this is as fast, but for its first call"),
    (r"^a (number|value) that keeps changing|^looking into a .* that keeps changing",
     "pass what changes as a tensor, torch.tensor(value)"),
    (r"^a string that keeps changing|^the identity of a string",
     "decide by it, or make the text, outside of the compiled function; handing it on is no break"),
    (r"^a warning|^the native function _?(warnings|logging|sys)\b|\blogging\b",
     "warn and log outside of the compiled function"),
    (r"^(a function that is a generator or a coroutine|a coroutine|a generator|sending a value into)",
     "compile the functions that it calls"),
    (r"^a new tensor as a dictionary key|^a dictionary key", "use names or numbers as keys"),
    (r"quickfuse\.graph_break\(\)|torch\._dynamo\S*graph_break", "delete the call to get one graph"),
    (r"^letting go of an object whose end runs code",
     "use the generator up, or close() it, before the function lets go of it"),
    (r"^an operator that may fail in a try statement",
     "check what the operator may refuse before something is changed in place"),
    (r"disable keeps out of graphs|^quickfuse\.disable", "compile the code before and after it, or lift the disable"),
    (r"^an exception: |^an operator that raises", "the program raises here: run it without compiling to see the error"),
    (r"^recursion deeper", "write the recursion as a loop"),
    (r"^a call that does not fit the signature", "the call raises TypeError: run it without compiling to see the error"),
    (
        r"^the native function|^a call of|^the method \S+ of a |on tensors$|^the tensor method|^the tensor attribute",
        "capture cannot look into it: move it out of the compiled function, or write it with PyTorch's operators",
    ),
    (
        r"^(setting|deleting) (an? |the )?(attribute|item)|^a dictionary changed|^deleting",
        "make the change outside of the compiled function, on what it returns",
    ),
]

_COMPILED = [(re.compile(pattern), advice) for pattern, advice in _TABLE]

_OTHERWISE = "move this line out of the compiled function, or keep it: the code before and after it is compiled all the same"

_PROGRAM_RAISES = re.compile("an exception: |an operator that raises: |a call that does not fit the signature")


def says_program_raises(reason: str) -> bool:
    """Whether capture ended because the program raises there."""
    return _PROGRAM_RAISES.match(reason) is not None


def says_size_depends_on_values(reason: str) -> bool:
    """Whether capture ended where a tensor is made that has as many elements as values say."""
    return reason.startswith("the number of elements that ")


def says_other_sizes(reason: str) -> bool:
    """Whether capture ended because a tensor has other sizes in each call, or would."""
    return says_size_depends_on_values(reason) or reason == "a tensor that has other sizes in each call"


def says_value_keeps_changing(reason: str) -> bool:
    """Whether capture ended where no guard is worth having, as what it would hold keeps changing."""
    return "keeps changing" in reason


def hint_for(reason: str, given: str = "") -> str:
    """What to write instead of what the compiler could not capture; `given` is what the reason's author knew of it."""
    for pattern, advice in _COMPILED:
        if pattern.search(reason):
            return advice
    return given or _OTHERWISE
