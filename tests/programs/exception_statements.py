"""Templates of raising, catching and context managers. See templates.py for the holes."""

from __future__ import annotations

from programs.templates import parse_statements

EXCEPTIONS = parse_statements("""
[4 try]
try:
    <guarded>
except Exception as <local:e exc>:
    LOG.append(type(<e>).__name__)
    <block>

[3 try]
try:
    <guarded>
except (ValueError, KeyError, IndexError, TypeError, RuntimeError, ZeroDivisionError, AttributeError, Oops, StopIteration):
    <arm>

[2 try-typed@protected]
try:
    <guarded>
except KeyError:
    <block>
except (IndexError, ZeroDivisionError) as <local:e exc>:
    LOG.append(str(<e>))

[2 try-typed]
try:
    <guarded>
except Deep as <local:e exc>:
    LOG.append((<e>.code, str(<e>)))
except Oops as <local:e exc>:
    LOG.append(<e>.args)
    <block>
except Exception:
    <arm>

[3 try-else]
try:
    <guarded>
except Exception:
    <block>
else:
    <block>

[2 try-finally]
try:
    <guarded>
except Exception as <local:e exc>:
    LOG.append(str(<e>)[:20])
finally:
    <block>

[2 try-finally]
try:
    <block>
finally:
    <block>

[1 try-all]
try:
    <guarded>
except ValueError:
    <block>
except Exception:
    <block>
else:
    <block>
finally:
    <block>

[2 try-loop]
for <local:i int> in range(<small>):
    try:
        <guarded>
    except Exception:
        continue
    finally:
        LOG.append(<i>)
    <loop>

[1 try-loop]
for <local:i int> in range(<small>):
    try:
        <guarded>
        break
    except Exception as <local:e exc>:
        LOG.append(type(<e>).__name__)
else:
    <block>

[1 finally-return@function]
if <cond>:
    try:
        <guarded>
    finally:
        return <result>

[1 try-return@function]
try:
    if <cond>:
        return <result>
    <guarded>
except Exception:
    <block>
finally:
    LOG.append('finally')

[3 raise-from]
try:
    try:
        <guarded>
        raise KeyError(<str>)
    except KeyError as <local:e exc>:
        raise Oops(<int>) from <e>
except Exception as <local:e exc>:
    LOG.append((type(<e>).__name__, str(<e>.__cause__)[:20], str(<e>.__context__)[:20]))

[1 raise-from]
try:
    try:
        raise Deep(<int>)
    except Oops:
        raise ValueError(<str>) from None
except ValueError as <local:e exc>:
    LOG.append((str(<e>), <e>.__suppress_context__, type(<e>.__context__).__name__))

[2 raise-context]
try:
    try:
        raise Oops(<int>, <str>)
    except Oops as <local:e exc>:
        <guarded>
        LOG.append(<e>.code)
except Exception as <local:e exc>:
    LOG.append((type(<e>).__name__, type(<e>.__context__).__name__))

[2 raise-bare]
try:
    try:
        <guarded>
        raise Deep(<int>)
    except Oops:
        <block>
        raise
except Exception as <local:e exc>:
    LOG.append(getattr(<e>, 'code', str(<e>)[:10]))

[1 raise-kept]
<new:k row> = None
try:
    <guarded>
    raise Oops(<int>)
except Exception as <local:e exc>:
    <k> = <e>
LOG.append(type(<k>).__name__)

[1 raise-info]
try:
    <guarded>
except Exception:
    LOG.append(sys.exc_info()[0].__name__)

[1 raise-note]
try:
    raise ValueError(<str>, <int>)
except ValueError as <local:e exc>:
    <e>.add_note(<str>)
    LOG.append((<e>.args, <e>.__notes__))

[1 except-leak@protected]
if <cond>:
    <local:a int> = <int>
LOG.append(<a>)

[3 raise@protected]
if <cond>:
    raise Oops(<int>)

[2 raise@protected]
if <cond>:
    raise ValueError(<str>)

[1 raise@protected]
raise RuntimeError(f'{<var int>}')

[1 raise@protected]
if <mat>.sum() > <float>:
    raise Deep(<int>, 'tensor')

[1 raise@protected]
if <cond>:
    raise StopIteration

[2 raise-helper@protected]
fail(<int>)

[1 raise-helper@protected]
<new int> = note(fail(<int>, Deep))

[1 raise@protected]
<new int>, <new int> = <ints>

[1 raise@protected]
<new mat> = <mat> @ <mat>

[4 with-class]
with Guard((ValueError, Oops), <int>) as <local:g int>:
    <guarded>

[2 with-class]
with Guard(Exception, <int>) as <local:g int>:
    <guarded>

[1 with-class]
with Guard(Exception, <int>) as <local:g int>, Guard(KeyError, 0):
    <guarded>

[3 with-contextlib]
with section(<str>) as <local:g int>:
    <block>

[1 with-contextlib]
with Guard(Exception, <int>), section('in'):
    <guarded>

[3 with-no-grad]
with torch.no_grad():
    <block>

[1 with-enable-grad]
with torch.no_grad(), torch.enable_grad():
    <block>

[1 with-suppress]
with contextlib.suppress(Exception):
    <guarded>

[1 with-return@function]
with Guard(ValueError, <int>):
    if <cond>:
        return <result>
    <block>

[1 with-loop]
for <local:i int> in range(<small>):
    with Guard(Exception, <i>):
        <loop>

[1 with-nullcontext]
with contextlib.nullcontext(<int>) as <local:g int>:
    <block>

[1 with-exitstack]
with contextlib.ExitStack() as <local:g row>:
    <g>.enter_context(Guard(ValueError, <int>))
    <g>.callback(LOG.append, <int>)
    <block>
""")
