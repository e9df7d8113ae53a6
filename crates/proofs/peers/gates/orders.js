// Orders behind express-idempotency and its Redis adapter, as their READMEs set them up.
// Usage: node orders.js PORT REDIS_URL
const express = require('express');
const { idempotency, getSharedIdempotencyService } = require('express-idempotency');
const RedisAdapter = require('express-idempotency-redis-adapter').default;

const [port, url] = process.argv.slice(2);
const adapter = new RedisAdapter({ connectionConfig: { url } });
const orders = [];

adapter.connect().then(() => {
  const app = express();
  app.get('/orders', (req, res) => res.json(orders.filter((order) => order.note === req.query.note)));
  app.use(express.json());
  app.use(idempotency({ dataAdapter: adapter }));
  app.post('/orders', (req, res) => {
    if (getSharedIdempotencyService().isHit(req)) return;
    setTimeout(() => {
      orders.push({ id: orders.length + 1, note: req.body.note });
      res.status(201).json({ id: orders.length });
    }, 4);
  });
  app.listen(Number(port), '127.0.0.1');
});
