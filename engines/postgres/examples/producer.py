#!/usr/bin/python3
"""Pushes a job in the transaction of its own rows: both are there, or none is.

It needs psycopg 3.1 or later, and a role that is a member of waterline_push:
    DATABASE_URL=postgresql://shop@localhost/shop ./producer.py ann@example.org 1999
"""
import json, os, sys

import psycopg

PUSH = "SELECT id, outcome FROM waterline.push(%s, %s, %s, %s)"


def order(db, customer, cents):
    with db.transaction():
        insert = "INSERT INTO orders (customer, cents) VALUES (%s, %s) RETURNING id"
        (number,) = db.execute(insert, [customer, cents]).fetchone()
        # The id makes it one job until it has run. One job of a customer at a time.
        settings = {"id": f"receipt-{number}", "key": customer}
        job = ("mail", "receipt", json.dumps({"order": number}), json.dumps(settings))
        return db.execute(PUSH, job).fetchone()


if __name__ == "__main__":
    with psycopg.connect(os.environ.get("DATABASE_URL", ""), autocommit=True) as db:
        print(*order(db, sys.argv[1], int(sys.argv[2])))
