"""Which Python functions are followed, and which are left to CPython as one call."""

from __future__ import annotations

import re
from types import FunctionType

#: Modules whose functions do nothing with tensors of a graph, talk to the world, or look at the interpreter itself: a
#: call is one step in Python. A name covers its submodules.
_LEFT_TO_PYTHON = (
    "argparse ast asyncio atexit base64 builtins calendar code codecs concurrent configparser copy csv ctypes datetime "
    "decimal difflib dis email fileinput fnmatch ftplib genericpath getpass gettext glob gzip hashlib heapq html http "
    "importlib inspect io ipaddress json linecache locale logging lzma mailbox mimetypes multiprocessing ntpath os "
    "pathlib pdb pickle pickletools pkgutil platform posixpath pprint profile queue random re secrets selectors shelve "
    "shlex shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess sys sysconfig tarfile tempfile "
    "textwrap threading timeit token tokenize trace traceback tracemalloc unittest urllib uuid warnings wave webbrowser "
    "xml zipfile zlib numpy scipy pandas matplotlib PIL tqdm rich jinja2 yaml requests sklearn networkx sympy tabulate "
    "wandb tensorboard torch._functorch.apis torch._functorch.eager_transforms torch._functorch.vmap torch._tensor_str "
    "torch.autograd.graph torch.autograd.profiler torch.cuda torch.distributed torch.export torch.fx torch.hub "
    "torch.library torch.multiprocessing torch.package torch.profiler torch.random torch.serialization torch.testing "
    "torch.utils.benchmark torch.utils.data torch.utils.dlpack torch.utils.hooks quickfuse.backends quickfuse.compile "
    "quickfuse.control quickfuse.doctor quickfuse.explain quickfuse.logs torch.utils.tensorboard "
    "torch.autograd.gradcheck torch.autograd.functional torch.autograd.anomaly_mode torch.autograd.forward_ad"
)
_PATTERN = re.compile(rf"(?:{'|'.join(re.escape(name) for name in _LEFT_TO_PYTHON.split())})(?:\..*)?")

#: Classes whose methods hold state that only real objects have.
_LEFT_BY_NAME = frozenset({"Tensor.register_hook", "Tensor.__deepcopy__", "Tensor.__reduce_ex__"})


def is_left_to_python(function: FunctionType) -> bool:
    """Whether a call of a Python function is performed as one step instead of being captured."""
    module = function.__module__
    return (type(module) is str and _PATTERN.fullmatch(module) is not None) or function.__qualname__ in _LEFT_BY_NAME
