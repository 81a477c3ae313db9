// Releases out of Kafka into your own program: a line for each HAT, as docs/release.schema.json describes it.
//
//     npm install
//     node consumer.mjs HOST:PORT [TOPIC [HOW_MANY]]
//
// This client reads committed records only: then each release comes once. A program that starts again may see one twice,
// with the same bytes: `release_id` says which it is. The latest ids are kept, and not all of them for ever.

import { randomUUID } from "node:crypto";
import { Kafka, logLevel } from "kafkajs";

const [bootstrap, topic = "bus.speed.release.v1", howMany = "0"] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: `releases-${randomUUID()}`, readUncommitted: false });
const KEPT = 100_000; // ids; what comes twice comes soon
const seen = new Set(); // has its values in their order
let printed = 0;

// The private mean with its 95 % interval in km/h, or why there is none.
function said({ status, mean }) {
  return mean === null ? [status] : [status, mean.value_kmh, ...mean.interval95_kmh];
}

await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
await new Promise((enough) => {
  consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      const release = JSON.parse(message.value.toString());
      if (seen.has(release.release_id)) return;
      seen.add(release.release_id);
      if (seen.size > KEPT) seen.delete(seen.values().next().value);
      console.log(release.release_id, ...said(release));
      printed += 1;
      if (printed === Number(howMany)) enough();
    },
  });
});
await consumer.disconnect();
