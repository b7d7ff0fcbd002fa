import com.google.protobuf.ByteString;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import querator.v1.Errors;
import querator.v1.Items.Item;
import querator.v1.Items.LeasedBatch;
import querator.v1.Items.SeqRange;
import querator.v1.QueueServiceGrpc;
import querator.v1.QueueServiceGrpc.QueueServiceStub;
import querator.v1.QueueServiceOuterClass.*;

/**
 * Produces and works on the items of a queue while a node dies, with only the stubs of the proto
 * files. ../../../../README.md describes what it shows and what it prints.
 */
public final class Failover {
  /** Produce requests that may be unanswered. */
  static final int WINDOW = 8;
  /** Items of a produce request. */
  static final int BATCH_ITEMS = 10;
  /** Items that may be delivered and not confirmed. */
  static final int CREDIT_ITEMS = 100;
  /** The largest payload that a queue takes by default. */
  static final int PAYLOAD_BYTES = 1 << 20;

  static final long PAUSE_MS = 100;

  static volatile boolean enough;

  /** The same request may succeed at another node. */
  static final class Elsewhere extends Exception {}

  interface Work {
    void at(QueueServiceStub queues, String address) throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    String[] addresses = arguments[0].split(",");
    start(Failover::readToTheEnd);
    Producer producer = new Producer(arguments[1]);
    Consumer consumer = new Consumer(arguments[1]);
    start(
        () -> {
          through(addresses, producer::produce);
          consumer.events.add(new Produced(producer.produced));
        });
    through(addresses, consumer::consume);
    System.out.printf(
        "{\"produced\": %d, \"completed\": %d, \"repeated\": %d, \"resent\": %d, \"largest\": %d}%n",
        producer.produced,
        consumer.completed.size(),
        producer.repeated,
        producer.resent + consumer.resent,
        consumer.largest);
  }

  interface Step {
    void run() throws Exception;
  }

  static void start(Step step) {
    Thread thread =
        new Thread(
            () -> {
              try {
                step.run();
              } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
              }
            });
    thread.setDaemon(true);
    thread.start();
  }

  static void readToTheEnd() throws IOException {
    while (System.in.read() >= 0) {}
    enough = true;
  }

  /** Calls one address after the other until the work is done. */
  static void through(String[] addresses, Work work) throws Exception {
    for (int turn = 0; ; turn++) {
      String address = addresses[turn % addresses.length];
      ManagedChannel channel =
          Grpc.newChannelBuilder(address, InsecureChannelCredentials.create()).build();
      try {
        work.at(QueueServiceGrpc.newStub(channel), address);
        return;
      } catch (Elsewhere error) {
        Thread.sleep(PAUSE_MS);
      } finally {
        channel.shutdownNow();
      }
    }
  }

  /** The error that ended a stream: an Elsewhere when the connection broke. */
  static Exception broken(Throwable error) {
    return switch (Status.fromThrowable(error).getCode()) {
      case UNAVAILABLE, ABORTED, INTERNAL -> new Elsewhere();
      default -> new IllegalStateException(error);
    };
  }

  static void refused(Errors.Error error) throws Elsewhere {
    check(error.getRetriable(), error.toString());
    throw new Elsewhere();
  }

  static void check(boolean holds, String message) {
    if (!holds) {
      throw new IllegalStateException(message);
    }
  }

  /** A message of a stream: an answer, or its end. */
  record Event(Object stream, Object answer, Throwable error) {}

  /** Number of items to be completed. */
  record Produced(int items) {}

  /** Puts the messages of a stream into a queue. */
  static final class Events<A> implements StreamObserver<A> {
    final BlockingQueue<Object> queue;

    Events(BlockingQueue<Object> queue) {
      this.queue = queue;
    }

    @Override
    public void onNext(A answer) {
      queue.add(new Event(this, answer, null));
    }

    @Override
    public void onError(Throwable error) {
      queue.add(new Event(this, null, error));
    }

    @Override
    public void onCompleted() {
      onError(Status.UNAVAILABLE.asException());
    }
  }

  /** Where a request is stored. */
  record Stored(int partition, long firstSeq, int count) {}

  static final class Producer {
    final String queue;
    final ByteString id = uuid7();
    final SortedMap<Long, ProduceRequest> unanswered = new TreeMap<>();
    final Map<Long, Stored> answers = new HashMap<>();
    /** The request that was answered last. */
    ProduceRequest last;
    long sequence;
    int produced;
    int repeated;
    int resent;

    Producer(String queue) {
      this.queue = queue;
    }

    void produce(QueueServiceStub queues, String address) throws Exception {
      BlockingQueue<Object> events = new LinkedBlockingQueue<>();
      StreamObserver<ProduceStreamRequest> stream = queues.produceStream(new Events<>(events));
      int waiting = 0; // Answers that are missing on this stream.
      if (last != null) { // This node must give the same answer as the lost node.
        send(stream, last);
        waiting++;
      }
      for (ProduceRequest request : unanswered.values()) {
        send(stream, request);
        waiting++;
        resent++;
      }
      for (boolean first = true; ; first = false) {
        while (unanswered.size() < WINDOW && !enough) {
          ProduceRequest request = next();
          unanswered.put(request.getSequence(), request);
          send(stream, request);
          waiting++;
        }
        if (waiting == 0) {
          stream.onCompleted();
          return;
        }
        Event event = (Event) events.take();
        if (event.error() != null) {
          throw broken(event.error());
        }
        ProduceStreamResponse answer = (ProduceStreamResponse) event.answer();
        waiting--;
        if (answer.hasError()) {
          refused(answer.getError());
        }
        if (first) {
          System.out.println("producing to " + address);
        }
        ProduceRequest request = unanswered.get(answer.getRequestNumber());
        keep(answer.getRequestNumber(), answer.getProduced());
        if (request != null && request.getSequence() == 1) {
          send(stream, request);
          waiting++;
        }
      }
    }

    static void send(StreamObserver<ProduceStreamRequest> stream, ProduceRequest request) {
      stream.onNext(
          ProduceStreamRequest.newBuilder()
              .setRequestNumber(request.getSequence())
              .setProduce(request)
              .build());
    }

    ProduceRequest next() {
      sequence++;
      ProduceRequest.Builder request =
          ProduceRequest.newBuilder().setQueue(queue).setProducerId(id).setSequence(sequence);
      int count = sequence == 1 ? 1 : BATCH_ITEMS;
      for (int n = 0; n < count; n++) {
        String payload = sequence + "-" + n;
        if (sequence == 1) {
          payload += " ".repeat(PAYLOAD_BYTES - payload.length());
        }
        request.addItems(Item.newBuilder().setPayload(ByteString.copyFromUtf8(payload)));
      }
      return request.build();
    }

    void keep(long number, ProduceResponse response) {
      check(response.getBatchesCount() == 1, number + " is in several partitions");
      ProducedBatch batch = response.getBatches(0);
      Stored answer = new Stored(batch.getPartition(), batch.getFirstSeq(), batch.getCount());
      if (batch.getRepeatedAnswer()) {
        repeated++;
      }
      Stored before = answers.putIfAbsent(number, answer);
      if (before != null) {
        check(
            batch.getRepeatedAnswer() && answer.equals(before),
            number + " was answered " + before + ", then " + batch);
        return;
      }
      last = unanswered.remove(number);
      produced += answer.count();
    }

    static ByteString uuid7() {
      byte[] id = new byte[16];
      new SecureRandom().nextBytes(id);
      ByteBuffer at = ByteBuffer.allocate(8).putLong(System.currentTimeMillis());
      System.arraycopy(at.array(), 2, id, 0, 6);
      id[6] = (byte) (id[6] & 0x0f | 0x70);
      id[8] = (byte) (id[8] & 0x3f | 0x80);
      return ByteString.copyFrom(id);
    }
  }

  /** The permanent name of an item. */
  record ItemId(int partition, long seq) {}

  /** A complete that is not confirmed. */
  record Settling(int partition, int items, CompleteRequest request) {}

  static final class Consumer {
    final String queue;
    final String id = UUID.randomUUID().toString();
    final BlockingQueue<Object> events = new LinkedBlockingQueue<>();
    final SortedMap<Long, Settling> unanswered = new TreeMap<>();
    /** Payloads of items that are delivered and not completed. */
    final Map<ItemId, String> payloads = new HashMap<>();
    /** By payload. */
    final Set<String> completed = new HashSet<>();
    /** Number of items to be completed; negative: not known yet. */
    int wanted = -1;
    /** Number of opened streams. */
    int streams;
    long number;
    int resent;
    int largest;

    Consumer(String queue) {
      this.queue = queue;
    }

    void consume(QueueServiceStub queues, String address) throws Exception {
      Events<LeaseStreamResponse> observer = new Events<>(events);
      StreamObserver<LeaseStreamRequest> stream = queues.leaseStream(observer);
      // The named leases hold. Other items in flight to the lost stream go back at once.
      Subscribe.Builder subscribe =
          Subscribe.newBuilder()
              .setQueue(queue)
              .setClientId("java")
              .setAutoExtend(true)
              .setConsumerId(id)
              .setStreamNumber(++streams)
              .addAllHeldLeaseIds(held());
      stream.onNext(LeaseStreamRequest.newBuilder().setSubscribe(subscribe).build());
      for (Map.Entry<Long, Settling> entry : unanswered.entrySet()) {
        settle(stream, entry.getKey(), entry.getValue());
        resent++;
      }
      credit(stream, CREDIT_ITEMS);
      for (boolean confirmed = false; completed.size() != wanted; ) {
        Object next = events.take();
        if (next instanceof Produced all) {
          wanted = all.items();
          continue;
        }
        Event event = (Event) next;
        if (event.stream() != observer) {
          continue; // The message is of a lost stream.
        }
        if (event.error() != null) {
          throw broken(event.error());
        }
        LeaseStreamResponse frame = (LeaseStreamResponse) event.answer();
        if (frame.hasError()) {
          refused(frame.getError());
        }
        for (LeasedBatch batch : frame.getLeased().getBatchesList()) {
          Settling taken = take(batch);
          unanswered.put(++number, taken);
          settle(stream, number, taken);
        }
        if (frame.hasCompleted()) {
          Settling settled = unanswered.remove(frame.getRequestNumber());
          settled(settled.partition(), frame.getCompleted());
          credit(stream, settled.items());
          if (!confirmed) {
            confirmed = true;
            System.out.println("consuming from " + address);
          }
        }
      }
      stream.onCompleted();
    }

    static void settle(StreamObserver<LeaseStreamRequest> stream, long number, Settling settling) {
      stream.onNext(
          LeaseStreamRequest.newBuilder()
              .setRequestNumber(number)
              .setComplete(settling.request())
              .build());
    }

    static void credit(StreamObserver<LeaseStreamRequest> stream, int items) {
      stream.onNext(
          LeaseStreamRequest.newBuilder().setCredit(Credit.newBuilder().setItems(items)).build());
    }

    /** The leases whose completes are not confirmed. */
    Set<String> held() {
      Set<String> leases = new HashSet<>();
      for (Settling settling : unanswered.values()) {
        leases.add(settling.request().getLeases(0).getLeaseId());
      }
      return leases;
    }

    /** The work would be done here. Returns the complete to be sent. */
    Settling take(LeasedBatch batch) {
      LeaseItems.Builder held = LeaseItems.newBuilder().setLeaseId(batch.getLeaseId());
      for (int n = 0; n < batch.getItemsCount(); n++) {
        long seq = batch.getFirstSeq() + (batch.getOrdinalsCount() > 0 ? batch.getOrdinals(n) : n);
        ByteString payload = batch.getItems(n).getPayload();
        largest = Math.max(largest, payload.size());
        payloads.put(
            new ItemId(batch.getPartition(), seq), payload.toStringUtf8().stripTrailing());
        held.addRanges(SeqRange.newBuilder().setFirstSeq(seq).setCount(1));
      }
      CompleteRequest request = CompleteRequest.newBuilder().addLeases(held).build();
      return new Settling(batch.getPartition(), batch.getItemsCount(), request);
    }

    /** Counts completed items. A lost item is delivered again: its lease had lapsed. */
    void settled(int partition, CompleteResponse response) {
      for (LeaseOutcome outcome : response.getOutcomesList()) {
        List<SeqRange> runs = new ArrayList<>(outcome.getDoneList());
        runs.addAll(outcome.getRepeatedAnswerList());
        for (SeqRange run : runs) {
          for (long seq = run.getFirstSeq(); seq < run.getFirstSeq() + run.getCount(); seq++) {
            String payload = payloads.remove(new ItemId(partition, seq));
            check(
                payload != null && completed.add(payload),
                partition + "-" + seq + " is completed twice");
          }
        }
      }
    }
  }
}
