"""Judging programs that a language model wrote, as HumanEval needs it.

Three processes take part. The *solution's* runs the judged program and holds nothing else. The *tests'* runs the
benchmark's own text and decides. The caller's starts both, ends both at the deadline, and hears from the tests'
alone, over a pipe of which the solution has no end. Arguments and results pass between the two as plain values
(:mod:`~commonground.papers.rolora.code_execution.values`), which are built anew on the other side: what a judged
program sends is compared, never run. So leaving early, patched builtins, objects that equal everything, walked frames
and whatever is written to its pipes is a wrong answer, or an answer like any other: no test, no expected value and no
verdict is ever in its reach.

Both processes are confined by the kernel (:mod:`~commonground.papers.rolora.code_execution.confine`): Linux 5.13 or
later on x86-64 or aarch64, without rights of an administrator. They have no network, start no process and no thread,
run no other program, signal and trace nobody, write no file, and read files of Python's installation and the system's
libraries alone. Processor time, memory, open files and the clock are limited; environment and home are empty; what is
printed goes nowhere. Where the kernel cannot do this nothing runs, unless the caller says ``confined=False``.

What this does not do:

- It is the kernel's word, not a machine's: a hole in the kernel or the processor is a hole here. A file's existence,
  size and times can be seen, as can Python's installation and system libraries, so no secret belongs there.
- Nothing but values of Python's own plain types travels. A solution that must be given or give back functions,
  iterators or objects of classes of its own fails, a change made to an argument is not seen by the test, and two
  results that were one object are two. HumanEval's tests need none of this.
- A solution that remembers what it was asked, or answers the benchmark's known questions from memory, passes: it
  gives the right answers.
- The tests and the helpers are confined as well, but believed: whoever writes them decides what passes.
- With ``confined=False`` only the kernel's limits of time, memory and file size are left where the rest is missing: a
  program may then use the network, read what the user may read, start processes that outlive it, end others, and
  write a verdict into the tests' process through ``/proc``. Do that in a container or a machine that holds nothing of
  value.
"""

from commonground.papers.rolora.code_execution.judge import Limits, Verdict, require_confinement, run_program

__all__ = ["Limits", "Verdict", "require_confinement", "run_program"]
