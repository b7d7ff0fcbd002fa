// Failover produces and works on the items of a queue while a node dies, with only the stubs of the
// proto files. ../README.md describes what it shows and what it prints.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "querator.test/client/querator/v1"
)

const (
	window       = 8       // Produce requests that may be unanswered.
	batchItems   = 10      // Items of a produce request.
	creditItems  = 100     // Items that may be delivered and not confirmed.
	payloadBytes = 1 << 20 // The largest payload that a queue takes by default.
	pause        = 100 * time.Millisecond
)

// errElsewhere says that the same request may succeed, here or at another node.
var errElsewhere = errors.New("go on with another node")

func main() {
	addresses, queue := strings.Split(os.Args[1], ","), os.Args[2]
	enough := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(enough)
	}()
	p := &producer{queue: queue, id: uuid7(), enough: enough,
		unanswered: map[uint64]*pb.ProduceRequest{}, answers: map[uint64]stored{}}
	c := &consumer{queue: queue, id: hex.EncodeToString(uuid7()), produced: make(chan int, 1), wanted: -1,
		payloads: map[item]string{}, unanswered: map[uint64]*settling{}, completed: map[string]bool{}}
	go func() {
		through(addresses, p.produce)
		c.produced <- p.produced
	}()
	through(addresses, c.consume)
	counts, _ := json.Marshal(map[string]int{"produced": p.produced, "completed": len(c.completed),
		"repeated": p.repeated, "resent": p.resent + c.resent, "largest": c.largest})
	fmt.Println(string(counts))
}

// through calls one address after the other until the work is done.
func through(addresses []string, work func(context.Context, pb.QueueServiceClient, string) error) {
	for turn := 0; ; turn++ {
		address := addresses[turn%len(addresses)]
		err := at(address, work)
		if err == nil {
			return
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.Internal: // The connection broke.
		default:
			check(errors.Is(err, errElsewhere), "%s: %v", address, err)
		}
		time.Sleep(pause)
	}
}

func at(address string, work func(context.Context, pb.QueueServiceClient, string) error) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	return work(ctx, pb.NewQueueServiceClient(connection), address)
}

type stored struct {
	partition uint32
	firstSeq  uint64
	count     uint32
}

type producer struct {
	queue                      string
	id                         []byte
	enough                     chan struct{}
	sequence                   uint64
	unanswered                 map[uint64]*pb.ProduceRequest
	last                       *pb.ProduceRequest // The one that was answered last.
	answers                    map[uint64]stored
	produced, repeated, resent int
}

func (p *producer) produce(ctx context.Context, queues pb.QueueServiceClient, address string) error {
	stream, err := queues.ProduceStream(ctx)
	if err != nil {
		return err
	}
	waiting := 0 // Answers that are missing on this stream.
	send := func(request *pb.ProduceRequest) {
		waiting++
		// When the stream is broken, Recv returns the reason.
		_ = stream.Send(&pb.ProduceStreamRequest{RequestNumber: request.Sequence, Produce: request})
	}
	if p.last != nil { // This node must give the same answer as the lost node.
		send(p.last)
	}
	for _, sequence := range sorted(p.unanswered) {
		p.resent++
		send(p.unanswered[sequence])
	}
	for first := true; ; first = false {
		for len(p.unanswered) < window && !isClosed(p.enough) {
			request := p.next()
			p.unanswered[request.Sequence] = request
			send(request)
		}
		if waiting == 0 {
			return stream.CloseSend()
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		waiting--
		if refusal := answer.GetError(); refusal != nil {
			check(refusal.Retriable, "produce: %v", refusal)
			return errElsewhere
		}
		if first {
			fmt.Println("producing to", address)
		}
		request := p.unanswered[answer.RequestNumber]
		p.keep(answer.RequestNumber, answer.GetProduced().Batches)
		if request != nil && request.Sequence == 1 {
			send(request)
		}
	}
}

func (p *producer) next() *pb.ProduceRequest {
	p.sequence++
	var items []*pb.Item
	for n := range batchItems {
		items = append(items, &pb.Item{Payload: fmt.Appendf(nil, "%d-%d", p.sequence, n)})
	}
	if p.sequence == 1 {
		items = items[:1]
		padding := bytes.Repeat([]byte(" "), payloadBytes-len(items[0].Payload))
		items[0].Payload = append(items[0].Payload, padding...)
	}
	return &pb.ProduceRequest{Queue: p.queue, ProducerId: p.id, Sequence: p.sequence, Items: items}
}

func (p *producer) keep(sequence uint64, batches []*pb.ProducedBatch) {
	check(len(batches) == 1, "request %d is in %d partitions", sequence, len(batches))
	batch := batches[0]
	answer := stored{batch.Partition, batch.FirstSeq, batch.Count}
	if batch.RepeatedAnswer {
		p.repeated++
	}
	if before, known := p.answers[sequence]; known {
		check(batch.RepeatedAnswer && answer == before, "request %d was answered %v, then %v", sequence,
			before, batch)
		return
	}
	p.answers[sequence] = answer
	p.last = p.unanswered[sequence]
	delete(p.unanswered, sequence)
	p.produced += int(answer.count)
}

type item struct {
	partition uint32
	seq       uint64
}

type settling struct {
	partition uint32
	items     uint32
	request   *pb.CompleteRequest
}

type consumer struct {
	queue           string
	id              string
	streams         uint32 // Number of opened streams.
	produced        chan int
	wanted          int // Number of items to be completed; negative: not known yet.
	number          uint64
	unanswered      map[uint64]*settling
	payloads        map[item]string // Of items that are delivered and not completed.
	completed       map[string]bool // By payload.
	resent, largest int
}

func (c *consumer) consume(ctx context.Context, queues pb.QueueServiceClient, address string) error {
	stream, err := queues.LeaseStream(ctx)
	if err != nil {
		return err
	}
	send := func(request *pb.LeaseStreamRequest) {
		_ = stream.Send(request) // When the stream is broken, Recv returns the reason.
	}
	settle := func(number uint64) {
		request := c.unanswered[number].request
		send(&pb.LeaseStreamRequest{RequestNumber: number, Frame: &pb.LeaseStreamRequest_Complete{Complete: request}})
	}
	credit := func(items uint32) {
		send(&pb.LeaseStreamRequest{Frame: &pb.LeaseStreamRequest_Credit{Credit: &pb.Credit{Items: items}}})
	}
	// The named leases hold. Other items in flight to the lost stream go back at once.
	c.streams++
	subscribe := &pb.Subscribe{Queue: c.queue, ClientId: "go", AutoExtend: true,
		ConsumerId: c.id, StreamNumber: c.streams, HeldLeaseIds: c.held()}
	send(&pb.LeaseStreamRequest{Frame: &pb.LeaseStreamRequest_Subscribe{Subscribe: subscribe}})
	for _, number := range sorted(c.unanswered) {
		c.resent++
		settle(number)
	}
	credit(creditItems)
	frames, failed := received(ctx, stream)
	for confirmed := false; len(c.completed) != c.wanted; {
		select {
		case c.wanted = <-c.produced:
		case err := <-failed:
			return err
		case frame := <-frames:
			for _, batch := range frame.GetLeased().GetBatches() {
				settle(c.take(batch))
			}
			if refusal := frame.GetError(); refusal != nil {
				check(refusal.Retriable, "complete: %v", refusal)
				return errElsewhere
			}
			if answer := frame.GetCompleted(); answer != nil {
				settled := c.unanswered[frame.RequestNumber]
				delete(c.unanswered, frame.RequestNumber)
				c.settled(settled.partition, answer.Outcomes)
				credit(settled.items)
				if !confirmed {
					confirmed = true
					fmt.Println("consuming from", address)
				}
			}
		}
	}
	return stream.CloseSend()
}

// held are the leases whose completes are not confirmed.
func (c *consumer) held() []string {
	var leases []string
	for _, settling := range c.unanswered {
		leases = append(leases, settling.request.Leases[0].LeaseId)
	}
	slices.Sort(leases)
	return slices.Compact(leases)
}

// received passes on the messages of the stream; the error comes last.
func received(ctx context.Context, stream pb.QueueService_LeaseStreamClient) (chan *pb.LeaseStreamResponse, chan error) {
	frames, failed := make(chan *pb.LeaseStreamResponse), make(chan error, 1)
	go func() {
		for {
			frame, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
				return
			}
		}
	}()
	return frames, failed
}

// take would do the work; it returns the number of the complete to be sent.
func (c *consumer) take(batch *pb.LeasedBatch) uint64 {
	held := &pb.LeaseItems{LeaseId: batch.LeaseId}
	for n, one := range batch.Items {
		seq := batch.FirstSeq + uint64(n)
		if len(batch.Ordinals) > 0 {
			seq = batch.FirstSeq + uint64(batch.Ordinals[n])
		}
		c.largest = max(c.largest, len(one.Payload))
		c.payloads[item{batch.Partition, seq}] = strings.TrimRight(string(one.Payload), " ")
		held.Ranges = append(held.Ranges, &pb.SeqRange{FirstSeq: seq, Count: 1})
	}
	c.number++
	request := &pb.CompleteRequest{Leases: []*pb.LeaseItems{held}}
	c.unanswered[c.number] = &settling{batch.Partition, uint32(len(batch.Items)), request}
	return c.number
}

// settled counts completed items. A lost item is delivered again: its lease had lapsed.
func (c *consumer) settled(partition uint32, outcomes []*pb.LeaseOutcome) {
	for _, outcome := range outcomes {
		for _, run := range slices.Concat(outcome.Done, outcome.RepeatedAnswer) {
			for seq := run.FirstSeq; seq < run.FirstSeq+uint64(run.Count); seq++ {
				id := item{partition, seq}
				payload, held := c.payloads[id]
				check(held && !c.completed[payload], "item %v is completed twice", id)
				delete(c.payloads, id)
				c.completed[payload] = true
			}
		}
	}
}

func uuid7() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	at := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	copy(id, at[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

func sorted[V any](by map[uint64]V) []uint64 {
	var numbers []uint64
	for number := range by {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	return numbers
}

func isClosed(channel chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

func check(holds bool, format string, values ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, format+"\n", values...)
		os.Exit(1)
	}
}
