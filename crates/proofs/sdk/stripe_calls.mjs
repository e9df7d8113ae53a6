// One Stripe call for each line of standard input, through the published SDK as it is.
//
// Usage: stripe_calls.mjs BASE_URL TIMEOUT_SECONDS. A line in is {"account": ...}, a line out is what the caller got.
// Keys and retries are the SDK's own; only the address and the timeout are set, as its documentation shows.

import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';

// The package is looked for beside the working folder, not beside this file.
const require = createRequire(`${process.cwd()}/`);
const Stripe = require('stripe');

const base = new URL(process.argv[2]);
const timeout = Number(process.argv[3]) * 1000;

for await (const line of createInterface({ input: process.stdin })) {
  const { account } = JSON.parse(line);
  const stripe = new Stripe(account, { protocol: 'http', host: base.hostname, port: base.port, timeout });
  let result;
  try {
    const intent = await stripe.paymentIntents.create({ amount: 4200, currency: 'eur' });
    result = { id: intent.id ?? null };
  } catch (error) {
    result = { error: error.type ?? error.name, status: error.statusCode ?? null, code: error.code ?? null };
  }
  console.log(JSON.stringify(result));
}
