// Produces and works on the items of a queue while a node dies, with only the proto files.
// ../README.md describes what it shows and what it prints.
const { randomBytes, randomUUID } = require("node:crypto");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const WINDOW = 8; // Produce requests that may be unanswered.
const BATCH_ITEMS = 10; // Items of a produce request.
const CREDIT_ITEMS = 100; // Items that may be delivered and not confirmed.
const PAYLOAD_BYTES = 1 << 20; // The largest payload that a queue takes by default.
const PAUSE_MS = 100;

const [addresses, queue] = process.argv.slice(2);
const { querator } = grpc.loadPackageDefinition(
  loader.loadSync("querator/v1/queue_service.proto", {
    includeDirs: [path.join(__dirname, "proto")],
    longs: Number,
    defaults: true,
    arrays: true,
  }),
);

// The same request may succeed at another node.
class Elsewhere extends Error {}

function check(holds, message) {
  if (!holds) throw new Error(message);
}

// Calls one address after the other until the work is done: `begin` gets a client, and functions that
// end the work there, well or with an error.
async function through(begin) {
  for (let turn = 0; ; turn++) {
    const all = addresses.split(",");
    const address = all[turn % all.length];
    const client = new querator.v1.QueueService(address, grpc.credentials.createInsecure());
    try {
      return await new Promise((done, fail) => begin(client, address, done, fail));
    } catch (error) {
      const { UNAVAILABLE, ABORTED, INTERNAL } = grpc.status; // The connection broke.
      const broken = [UNAVAILABLE, ABORTED, INTERNAL].includes(error.code);
      if (!broken && !(error instanceof Elsewhere)) throw error;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    } finally {
      client.close();
    }
  }
}

// Passes a stream's answers to `take`; any error ends the work with this node.
function listen(stream, fail, take) {
  const end = (error) => {
    stream.removeAllListeners("data");
    stream.cancel();
    fail(error);
  };
  stream.on("error", end);
  stream.on("end", () => end(new Elsewhere("the stream has ended")));
  stream.on("data", (answer) => {
    try {
      if (answer.error) {
        check(answer.error.retriable, `${answer.error.code}: ${answer.error.message}`);
        throw new Elsewhere(answer.error.message);
      }
      take(answer);
    } catch (error) {
      end(error);
    }
  });
}

const producer = {
  id: uuid7(),
  sequence: 0,
  unanswered: new Map(), // In the order of the sequences.
  answers: new Map(),
  last: null, // The request that was answered last.
  enough: false,
  done: false,
  produced: 0,
  repeated: 0,
  resent: 0,

  begin(client, address, done, fail) {
    const stream = client.produceStream();
    let waiting = 0; // Answers that are missing on this stream.
    const send = (produce) => {
      waiting++;
      stream.write({ requestNumber: produce.sequence, produce });
    };
    const goOn = () => {
      while (this.unanswered.size < WINDOW && !this.enough) {
        const request = this.next();
        this.unanswered.set(request.sequence, request);
        send(request);
      }
      if (waiting === 0) {
        stream.end();
        done();
      }
    };
    // This node must give the same answer as the lost node.
    if (this.last) send(this.last);
    for (const request of this.unanswered.values()) {
      this.resent++;
      send(request);
    }
    let first = true;
    listen(stream, fail, ({ requestNumber, produced }) => {
      waiting--;
      if (first) console.log(`producing to ${address}`);
      first = false;
      const request = this.unanswered.get(requestNumber);
      this.keep(requestNumber, produced.batches);
      if (request?.sequence === 1) send(request);
      goOn();
    });
    goOn();
  },

  next() {
    const sequence = ++this.sequence;
    const numbers = [...Array(sequence === 1 ? 1 : BATCH_ITEMS).keys()];
    const items = numbers.map((n) => {
      const payload = `${sequence}-${n}`;
      return { payload: Buffer.from(sequence === 1 ? payload.padEnd(PAYLOAD_BYTES) : payload) };
    });
    return { queue, producerId: this.id, sequence, items };
  },

  keep(number, batches) {
    check(batches.length === 1, `request ${number} is in ${batches.length} partitions`);
    const { partition, firstSeq, count, repeatedAnswer } = batches[0];
    const answer = `${count} items from ${partition}-${firstSeq}`;
    if (repeatedAnswer) this.repeated++;
    const before = this.answers.get(number);
    if (before) {
      const same = repeatedAnswer && answer === before;
      check(same, `request ${number} was answered ${before}, then ${answer}`);
      return;
    }
    this.answers.set(number, answer);
    this.last = this.unanswered.get(number);
    this.unanswered.delete(number);
    this.produced += count;
  },
};

const consumer = {
  id: randomUUID(),
  streams: 0, // Number of opened streams.
  number: 0,
  unanswered: new Map(), // In the order of the numbers.
  payloads: new Map(), // Of items that are delivered and not completed.
  completed: new Set(), // By payload.
  resent: 0,
  largest: 0,
  finish: () => {}, // Ends the work when all is completed.

  begin(client, address, done, fail) {
    const stream = client.leaseStream();
    const settle = (number) => {
      stream.write({ requestNumber: number, complete: this.unanswered.get(number).request });
    };
    // The named leases hold. Other items in flight to the lost stream go back at once.
    const consumer = { consumerId: this.id, streamNumber: ++this.streams, heldLeaseIds: this.held() };
    stream.write({ subscribe: { queue, clientId: "node", autoExtend: true, ...consumer } });
    for (const number of this.unanswered.keys()) {
      this.resent++;
      settle(number);
    }
    stream.write({ credit: { items: CREDIT_ITEMS } });
    this.finish = () => {
      if (!producer.done || this.completed.size !== producer.produced) return;
      stream.end();
      done();
    };
    let first = true;
    listen(stream, fail, ({ requestNumber, leased, completed }) => {
      for (const batch of leased?.batches ?? []) {
        this.unanswered.set(++this.number, this.take(batch));
        settle(this.number);
      }
      if (!completed) return;
      const { partition, items } = this.unanswered.get(requestNumber);
      this.unanswered.delete(requestNumber);
      this.settled(partition, completed.outcomes);
      stream.write({ credit: { items } });
      if (first) console.log(`consuming from ${address}`);
      first = false;
      this.finish();
    });
    this.finish();
  },

  // The leases whose completes are not confirmed.
  held() {
    const leases = [...this.unanswered.values()].map(({ request }) => request.leases[0].leaseId);
    return [...new Set(leases)];
  },

  // The work would be done here. Returns the complete to be sent.
  take({ leaseId, partition, firstSeq, ordinals, items }) {
    const ranges = items.map(({ payload }, n) => {
      const seq = firstSeq + (ordinals.length > 0 ? ordinals[n] : n);
      this.largest = Math.max(this.largest, payload.length);
      this.payloads.set(`${partition}-${seq}`, payload.toString().trimEnd());
      return { firstSeq: seq, count: 1 };
    });
    return { partition, items: items.length, request: { leases: [{ leaseId, ranges }] } };
  },

  // Counts completed items. A lost item is delivered again: its lease had lapsed.
  settled(partition, outcomes) {
    for (const { done, repeatedAnswer } of outcomes) {
      for (const { firstSeq, count } of [...done, ...repeatedAnswer]) {
        for (let seq = firstSeq; seq < firstSeq + count; seq++) {
          const id = `${partition}-${seq}`;
          const payload = this.payloads.get(id);
          check(payload && !this.completed.has(payload), `item ${id} is completed twice`);
          this.payloads.delete(id);
          this.completed.add(payload);
        }
      }
    }
  },
};

function uuid7() {
  const id = randomBytes(16);
  id.writeUIntBE(Date.now(), 0, 6);
  id[6] = (id[6] & 0x0f) | 0x70;
  id[8] = (id[8] & 0x3f) | 0x80;
  return id;
}

async function produce() {
  process.stdin.on("end", () => (producer.enough = true)).resume();
  await through((...here) => producer.begin(...here));
  producer.done = true;
  consumer.finish();
}

async function main() {
  await Promise.all([produce(), through((...here) => consumer.begin(...here))]);
  const { produced, repeated } = producer;
  const resent = producer.resent + consumer.resent;
  const { completed, largest } = consumer;
  console.log(JSON.stringify({ produced, completed: completed.size, repeated, resent, largest }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
