"""A daily report that runs on one machine only, started by cron on all of them.

    TENURE_ENDPOINTS=… python3 report.py

``rest`` keeps machines whose clocks differ a little from running it twice.
"""

from __future__ import annotations

import tenure

client = tenure.Client.from_env()


@client.singleton("reports/daily", ttl=10, rest=60)
def report(lease: tenure.Lease) -> str:
    with lease.permit() as permit:
        client.registers.put("reports/daily/last", "done", permit=permit)
    return "written"


if __name__ == "__main__":
    print(report() or "skipped: another machine has it, or it was just done")
    client.close()
