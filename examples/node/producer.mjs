// Pings into Kafka from your own program: one a line on standard input, in the form of docs/ping.schema.json.
//
//     npm install
//     my-feed | node producer.mjs HOST:PORT [TOPIC]
//
// Three rules (docs/operations.md, "A feed of your own"):
//
// 1. A plate stays on one partition for ever. So the partition comes from the plate alone, and one program, this one or
//    `udp-stream feed`, feeds a deployment: they choose partitions in different ways.
// 2. Records have no key.
// 3. A record is one ping, or an array that is cut by the number of pings.

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { Kafka, logLevel } from "kafkajs";

const AT_ONCE = 500;
const WITHIN_MS = 100; // so that a ping of a quiet night does not wait until others have come

// The same in ../python/producer.py.
function partitionOf(plate, partitions) {
  return createHash("sha256").update(plate.trim()).digest().readUInt32BE(0) % partitions;
}

const [bootstrap, topic = "bus.pings.v1"] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
const admin = kafka.admin();
await admin.connect();
const partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
await admin.disconnect();

const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
let waiting = [];
let sent = 0;
let last = Promise.resolve();
let timer;

// One after the other, so that the pings of a plate stay in their order.
function send() {
  clearTimeout(timer);
  timer = undefined;
  const messages = waiting;
  waiting = [];
  sent += messages.length;
  last = last.then(() => producer.send({ topic, messages, acks: -1 })); // rejects if the broker did not take it
  return last;
}

for await (const line of createInterface({ input: process.stdin })) {
  waiting.push({ value: line, partition: partitionOf(JSON.parse(line).license_plate, partitions) });
  if (waiting.length === AT_ONCE) await send();
  else timer ??= setTimeout(send, WITHIN_MS);
}
if (waiting.length) send();
await last;
await producer.disconnect();
console.error(`${sent} pings sent`);
