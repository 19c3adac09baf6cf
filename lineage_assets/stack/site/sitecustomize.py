"""What Python runs first in the processes of the Spark server, by its path: quiet for pyspark's streaming worker.

Belongs here: what must hold before pyspark's own first line. Does not belong here: anything else; it costs every worker.

That worker prints two lines for each batch, and its first shows the address of the server with its token. What our code
says there goes to the standard error, which is kept.
"""

import os
import sys

if any(argument.endswith("foreach_batch_worker") for argument in sys.orig_argv):
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
