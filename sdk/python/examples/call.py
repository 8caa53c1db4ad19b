"""Runs a command, which a person may have to allow first, and prints its output.

Run it again with the same call id to get the same result: the command runs once.
"""

import sys

import toolgate

command, call_id = sys.argv[1:]
with toolgate.Client() as client:
    try:
        result = client.call("bash", {"command": command}, session="ses_example", call_id=call_id)
        print(result.output)
    except toolgate.CallError as error:
        sys.exit(f"{error.reason}: {error.next_step}")
