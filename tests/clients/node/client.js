// Produces three items and works on them, over the streams: plain gRPC with the proto files.
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protos] = process.argv.slice(2);
const files = ["querator/v1/queue_service.proto", "querator/v1/admin_service.proto"];
const { querator } = grpc.loadPackageDefinition(loader.loadSync(files, { includeDirs: [protos] }));
const open = (Service) => new Service(address, grpc.credentials.createInsecure());
const admin = open(querator.v1.AdminService), queues = open(querator.v1.QueueService);

admin.createQueue({ queue: "greetings" }, (error) => {
  if (error) throw error;
  const producer = queues.produceStream();
  const items = ["hello", "bonjour", "merhaba"].map((text) => ({ payload: Buffer.from(text) }));
  producer.on("data", ({ produced, error }) => (error ? producer.emit("error", error) : consume()));
  producer.end({ requestNumber: 1, produce: { queue: "greetings", items } });
});

function consume(left = 3) {
  const consumer = queues.leaseStream();
  consumer.on("data", ({ leased, completed }) => {
    for (const { leaseId, items } of leased?.batches ?? []) {
      items.forEach(({ payload }) => console.log(payload.toString()));
      consumer.write({ requestNumber: 1, complete: { leases: [{ leaseId }] } });
      left -= items.length;
    }
    if (completed && left === 0) consumer.end();
  });
  consumer.write({ subscribe: { queue: "greetings", clientId: "node", autoExtend: true } });
  consumer.write({ credit: { items: 3 } });
}
