#!/usr/bin/env node
// Pushes a job in the transaction of its own rows: both are there, or none is.
//
// It needs pg 8, and a role that is a member of waterline_push:
//     DATABASE_URL=postgresql://shop@localhost/shop ./producer.js ann@example.org 1999
'use strict';
const pg = require('pg');

const PUSH = 'SELECT id, outcome FROM waterline.push($1, $2, $3, $4)';

async function order(db, customer, cents) {
  await db.query('BEGIN');
  try {
    const insert = 'INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id';
    const { rows: [{ id }] } = await db.query(insert, [customer, cents]);
    // The id makes it one job until it has run. One job of a customer at a time.
    const settings = { id: `receipt-${id}`, key: customer };
    const job = ['mail', 'receipt', JSON.stringify({ order: id }), JSON.stringify(settings)];
    const { rows: [pushed] } = await db.query(PUSH, job);
    await db.query('COMMIT');
    return pushed;
  } catch (error) {
    await db.query('ROLLBACK');
    throw error;
  }
}

module.exports = { order };

if (require.main === module) {
  (async () => {
    const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
    await db.connect();
    const { id, outcome } = await order(db, process.argv[2], Number(process.argv[3]));
    console.log(id, outcome);
    await db.end();
  })().catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
