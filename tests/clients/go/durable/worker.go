package durable

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "querator.test/client/querator/v1"
)

const (
	pause   = 100 * time.Millisecond
	tryTime = 10 * time.Second // The longest time for one attempt of a call.
)

// Worker runs durable functions for the executions of one queue.
type Worker struct {
	Addresses        []string // Any node takes any call.
	Namespace, Queue string
	Functions        map[string]Function
	Concurrency      int
	LeaseTimeout     time.Duration
	ClientID         string

	nodes    []*grpc.ClientConn
	node     atomic.Uint32
	requests atomic.Uint64
	running  sync.WaitGroup
	leases   map[string]*lease
	guard    sync.Mutex
}

// Run works until the context ends; then steps under way may end, and executions are given back.
func (w *Worker) Run(ctx context.Context) error {
	w.leases = map[string]*lease{}
	for _, address := range w.Addresses {
		node, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer node.Close()
		w.nodes = append(w.nodes, node)
	}
	defer w.running.Wait()
	slots := make(chan struct{}, w.Concurrency)
	for ctx.Err() == nil {
		slots <- struct{}{} // Waits until there is room for one.
		<-slots
		since := time.Now()
		granted, err := w.lease(ctx, uint32(w.Concurrency-len(slots)))
		if err != nil && ctx.Err() == nil {
			return err
		}
		for _, activation := range granted {
			slots <- struct{}{}
			w.running.Add(1)
			held := w.hold(activation, since)
			go func() {
				defer func() { w.release(held); <-slots; w.running.Done() }()
				w.work(ctx, activation, held)
			}()
		}
	}
	return nil
}

// --- calls ---------------------------------------------------------------------------------------

// call repeats a call, at one node after the other, until it has an answer or `ctx` ends.
func (w *Worker) call(ctx context.Context, one func(context.Context, *grpc.ClientConn) error) error {
	for {
		at := w.node.Load()
		within, cancel := context.WithTimeout(ctx, tryTime)
		err := one(within, w.nodes[int(at)%len(w.nodes)])
		cancel()
		if err == nil || ctx.Err() != nil || !isPassing(err) {
			return err
		}
		w.node.CompareAndSwap(at, at+1)
		time.Sleep(pause)
	}
}

// reason is the code of an error of Querator; empty: the connection broke.
func reason(err error) (string, map[string]string) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason, info.Metadata
		}
	}
	return "", nil
}

// isPassing says whether the same request may succeed.
func isPassing(err error) bool {
	code, said := reason(err)
	if code == "" {
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal:
			return true
		}
	}
	return code == "OUTCOME_UNKNOWN" || said["retriable"] == "true"
}

// lease asks for activations. An answer that was lost is asked for again.
func (w *Worker) lease(ctx context.Context, most uint32) ([]*pb.Activation, error) {
	request := &pb.LeaseActivationsRequest{Namespace: w.Namespace, Queue: w.Queue, ClientId: w.ClientID,
		RequestId: fmt.Sprintf("%s-%d", w.ClientID, w.requests.Add(1)), MaxActivations: most,
		LeaseTimeout: durationpb.New(w.LeaseTimeout), RequestTimeout: durationpb.New(w.LeaseTimeout / 3)}
	for name, function := range w.Functions {
		named := &pb.FunctionVersion{Function: name, Version: function.Version}
		request.Functions = append(request.Functions, named)
	}
	var answer *pb.LeaseActivationsResponse
	ask := func(ctx context.Context, node *grpc.ClientConn) (err error) {
		answer, err = pb.NewExecutionServiceClient(node).LeaseActivations(ctx, request)
		return err
	}
	err := ask(ctx, w.nodes[int(w.node.Load())%len(w.nodes)])
	code, said := reason(err)
	switch {
	case err == nil:
		return answer.Activations, nil
	case !isPassing(err) && ctx.Err() == nil:
		return nil, err
	case code == "OUTCOME_UNKNOWN" && said["field"] == "partition":
		var partition uint32
		_, _ = fmt.Sscan(said["value"], &partition)
		request.Partition = &partition
	case code == "":
		// What it may have leased is asked for, and no more.
		request.GivenUp = true
	default:
		w.node.Add(1)
		time.Sleep(pause)
		return nil, nil
	}
	w.node.Add(1)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.LeaseTimeout/3)
	defer cancel()
	if err := w.call(within, ask); err != nil {
		log.Printf("activations may be leased until they lapse: %v", err)
		return nil, nil
	}
	return answer.Activations, nil
}

// lease of one or more activations.
type lease struct {
	id      string
	holders int
	guard   sync.Mutex
	ends    time.Time
	lost    bool
	wakes   map[chan struct{}]bool
	over    context.Context // Ends when the lease is lost or over, or nothing holds it.
	end     context.CancelFunc
}

func (l *lease) lives() bool {
	l.guard.Lock()
	defer l.guard.Unlock()
	return !l.lost && time.Now().Before(l.ends)
}

func (l *lease) isLost() bool {
	l.guard.Lock()
	defer l.guard.Unlock()
	return l.lost
}

// hold keeps the lease of an activation, which was asked for at `since`.
func (w *Worker) hold(a *pb.Activation, since time.Time) *lease {
	w.guard.Lock()
	defer w.guard.Unlock()
	l := w.leases[a.LeaseId]
	if l == nil {
		l = &lease{id: a.LeaseId, ends: since.Add(a.Remaining.AsDuration()), wakes: map[chan struct{}]bool{}}
		l.over, l.end = context.WithCancel(context.Background())
		w.leases[a.LeaseId] = l
		go w.keep(l)
	}
	l.holders++
	return l
}

func (w *Worker) release(l *lease) {
	w.guard.Lock()
	defer w.guard.Unlock()
	if l.holders--; l.holders == 0 {
		delete(w.leases, l.id)
		l.end()
	}
}

// keep extends a lease after a third of its time, which counts from when it was asked for.
func (w *Worker) keep(l *lease) {
	request := &pb.ExtendRequest{Namespace: w.Namespace, Queue: w.Queue, LeaseIds: []string{l.id}}
	for {
		select {
		case <-l.over.Done():
			return
		case <-time.After(time.Until(l.ends) - w.LeaseTimeout*2/3): // Only this goroutine changes it.
		}
		asked, lost := time.Now(), false
		var answer *pb.ExtendResponse
		err := w.call(l.over, func(ctx context.Context, node *grpc.ClientConn) (err error) {
			answer, err = pb.NewQueueServiceClient(node).Extend(ctx, request)
			return err
		})
		l.guard.Lock()
		if err == nil && len(answer.Outcomes) == 1 && answer.Outcomes[0].Error == 0 {
			l.ends = asked.Add(answer.Outcomes[0].LeaseRemaining.AsDuration())
		} else {
			l.lost, lost = true, true
		}
		for wake := range l.wakes {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
		l.guard.Unlock()
		if lost {
			l.end()
			return
		}
	}
}
