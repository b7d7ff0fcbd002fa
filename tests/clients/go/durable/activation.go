package durable

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "querator.test/client/querator/v1"
)

const lingerMs = 250 // A timer that is due within this time is waited for, without parking.

type outcome struct {
	of      *operation
	attempt int
	payload []byte
	err     error
}

type answered struct {
	answer *pb.RecordProgressResponse
	err    error
}

// run is an activation at work. Its goroutine is the owner of its code.
type run struct {
	w        *Worker
	a        *pb.Activation
	lease    *lease
	code     *code
	aheadMs  int64 // By how much the partition's time is ahead of the clock of this process.
	known    uint64
	number   uint64
	version  string // If it is another one than before.
	outcomes chan outcome
	begun    map[Path]context.CancelFunc
	answers  chan answered
	inFlight *pb.RecordProgressRequest
	wake     chan struct{}
}

func (w *Worker) work(ctx context.Context, a *pb.Activation, l *lease) {
	r := &run{w: w, a: a, lease: l, outcomes: make(chan outcome, 16), begun: map[Path]context.CancelFunc{},
		answers: make(chan answered, 1), wake: make(chan struct{}, 1)}
	l.guard.Lock()
	l.wakes[r.wake] = true
	l.guard.Unlock()
	r.heard(a.NowMs)
	if err := r.run(ctx); err != nil {
		log.Printf("%s %q: %v", a.Function, a.Id, err)
	}
	l.guard.Lock()
	delete(l.wakes, r.wake)
	l.guard.Unlock()
}

func (r *run) heard(nowMs uint64) {
	r.aheadMs = max(r.aheadMs, int64(nowMs)-time.Since(started).Milliseconds())
}

var started = time.Now() // Its monotonic part is what counts.

func (r *run) nowMs() uint64 { return uint64(time.Since(started).Milliseconds() + r.aheadMs) }

func (r *run) run(ctx context.Context) error {
	journal := r.a.Records
	if r.a.NextIndex > 0 {
		rest, err := r.journal(r.a.NextIndex)
		if err != nil {
			return err
		}
		journal = append(journal, rest...)
	}
	r.known = journal[len(journal)-1].Index
	function, found := r.w.Functions[r.a.Function]
	if !found {
		return r.leave(&pb.GiveBack{Pinned: true, Reason: "the worker has no function " + r.a.Function})
	}
	if ctx.Err() != nil {
		return r.leave(&pb.GiveBack{})
	}
	id := Identity{Namespace: r.w.Namespace, Queue: r.w.Queue, Partition: r.a.Partition, Number: r.a.Execution,
		ID: r.a.Id, Run: r.a.Run, Origin: r.a.OriginRun, Secret: r.a.Secret}
	c, err := newCode(id, r.a.Function, function, journal[0])
	if err == nil {
		defer c.putAway()
		err = c.load(journal, r.a.Version, r.a.Timers, r.a.Seen)
	}
	if err != nil {
		return r.leave(unfit(function.Version, r.a.Version, err))
	}
	r.code = c
	if function.Version != r.a.Version {
		r.version = function.Version
	}
	defer func() {
		for _, cancel := range r.begun {
			cancel()
		}
	}()
	return r.drive(ctx)
}

// unfit gives back an execution whose journal is not of this code.
func unfit(version, ran string, err error) *pb.GiveBack {
	text := []rune(err.Error())
	back := &pb.GiveBack{Reason: string(text[:min(len(text), 1000)])}
	if version == ran {
		back.Stuck = true
	} else {
		back.Pinned, back.RefusedVersion = true, version
	}
	return back
}

// drive gives the code what happens, until the execution has left this worker.
func (r *run) drive(ctx context.Context) error {
	for stopping := ctx.Done(); ; {
		// The answer to a Record that is in flight says whether it has ended the lease itself.
		if r.lease.isLost() && r.inFlight == nil {
			return fmt.Errorf("the lease is lost; another worker has it")
		}
		nowMs := r.nowMs()
		r.code.tick(nowMs)
		if ctx.Err() == nil && r.lease.lives() && !r.isLeaving() {
			for _, o := range r.code.takeReady(nowMs) {
				r.begin(o)
			}
		}
		for _, path := range r.code.abandoned {
			if cancel := r.begun[path]; cancel != nil {
				cancel()
				delete(r.begun, path)
			}
		}
		r.code.abandoned = nil
		if r.inFlight == nil {
			r.send(nowMs, ctx.Err() != nil)
		}
		var due <-chan time.Time
		if at := r.code.nextDue(); at > 0 && r.lease.lives() && ctx.Err() == nil {
			due = time.After(time.Duration(max(int64(at)-int64(r.nowMs()), 1)) * time.Millisecond)
		}
		select {
		case <-stopping:
			stopping = nil
		case <-due:
		case <-r.wake: // What has arrived is looked for behind each extension.
			if !r.isLeaving() {
				if err := r.hear(); err != nil {
					return err
				}
			}
		case o := <-r.outcomes:
			delete(r.begun, o.of.path)
			r.code.ended(o.of, o.attempt, o.payload, o.err, r.nowMs())
		case got := <-r.answers:
			if isOver, err := r.answered(got); isOver || err != nil {
				return err
			}
		}
	}
}

// isLeaving says whether a Record in flight ends the lease of the execution: then another worker may have it.
func (r *run) isLeaving() bool { return r.inFlight != nil && r.inFlight.Then != nil }

// begin runs an attempt of a step.
func (r *run) begin(o *operation) {
	ctx, cancel := context.WithCancel(r.lease.over)
	r.begun[o.path] = cancel
	given := Attempt{Context: ctx, Key: r.code.id.StepKey(o.path, o.name), Number: o.attempt}
	go func() {
		one := outcome{of: o, attempt: given.Number}
		defer func() {
			if broken := recover(); broken != nil {
				one.err = &Failure{Type: "go.panic", Text: fmt.Sprintf("%v\n%.600s", broken, debug.Stack())}
			}
			select {
			case r.outcomes <- one:
			case <-ctx.Done():
			}
		}()
		var value any
		if value, one.err = o.effect(given); one.err == nil {
			one.payload, one.err = json.Marshal(value)
		}
	}()
}

// --- Records -------------------------------------------------------------------------------------

// send sends the next Record, if there is something to say.
func (r *run) send(nowMs uint64, isStopping bool) {
	c, then := r.code, &pb.RecordProgressRequest{}
	switch {
	case c.stuck != "":
		text := []rune(c.stuck)
		back := &pb.GiveBack{Stuck: true, Reason: string(text[:min(len(text), 1000)])}
		then.Then = &pb.RecordProgressRequest_GiveBack{GiveBack: back}
	case c.end != nil:
		c.starts = nil // They have no effect any more.
		then = c.end
	case c.isIdle():
		if due := c.nextDue(); due > 0 && due <= nowMs+lingerMs && !isStopping {
			return
		}
		if park := c.park(); park != nil {
			then.Then = &pb.RecordProgressRequest_Park{Park: park}
		} else {
			c.stuck = "the code waits for nothing that can arrive"
			r.send(nowMs, isStopping)
			return
		}
	case isStopping && len(r.begun) == 0:
		then.Then = &pb.RecordProgressRequest_GiveBack{GiveBack: &pb.GiveBack{}}
	case !c.hasNews():
		return
	}
	request := &pb.RecordProgressRequest{}
	if c.take(request) {
		request.Then = then.Then
	}
	r.sendNow(request)
}

func (r *run) sendNow(request *pb.RecordProgressRequest) {
	r.number++
	request.Namespace, request.Queue, request.LeaseId = r.w.Namespace, r.w.Queue, r.a.LeaseId
	request.Item, request.Execution, request.Number = r.a.Item, r.a.Execution, r.number
	request.Version = r.version
	r.inFlight = request
	go func() {
		var got answered
		got.err = r.w.call(r.lease.over, func(ctx context.Context, node *grpc.ClientConn) (err error) {
			got.answer, err = pb.NewExecutionServiceClient(node).RecordProgress(ctx, request)
			return err
		})
		r.answers <- got
	}()
}

// leave gives back an execution of which nothing has run.
func (r *run) leave(back *pb.GiveBack) error {
	r.sendNow(&pb.RecordProgressRequest{Then: &pb.RecordProgressRequest_GiveBack{GiveBack: back}})
	got := <-r.answers
	if got.err == nil && back.Reason != "" {
		log.Printf("%s %q is given back: %s", r.a.Function, r.a.Id, back.Reason)
	}
	return got.err
}

// answered takes the answer to a Record. True: the execution has left this worker.
func (r *run) answered(got answered) (bool, error) {
	request := r.inFlight
	r.inFlight = nil
	if got.err == nil {
		r.heard(got.answer.NowMs)
		r.code.acknowledged += len(request.Records)
		if request.Then != nil {
			return true, nil
		}
		if len(request.Children) > 0 { // The journal says whether they were started.
			return false, r.hear()
		}
		return false, nil
	}
	switch code, _ := reason(got.err); {
	case code == "UNSEEN":
		r.number--
		r.code.putBack(request)
		known := r.known
		err := r.hear()
		if r.known == known {
			time.Sleep(pause)
		}
		return false, err
	case isPassing(got.err) || status.Code(got.err) == codes.Canceled, code == "LEASE_LOST", code == "SEQUENCE_GAP",
		code == "EXECUTION_NOT_FOUND", code == "EXECUTION_CLOSED":
		return true, got.err
	}
	// A limit, or a defect: a person must help.
	r.number--
	return true, r.leave(&pb.GiveBack{Stuck: true, Reason: fmt.Sprintf("a Record was refused: %.900s", got.err)})
}

// hear gives the code what has arrived behind what was read.
func (r *run) hear() error {
	fresh, err := r.journal(r.known + 1)
	if err != nil || len(fresh) == 0 {
		return err
	}
	r.known = fresh[len(fresh)-1].Index
	for _, record := range fresh {
		if record.Kind == terminated {
			return fmt.Errorf("it was ended from outside")
		}
	}
	r.code.arrive(fresh)
	return nil
}

// journal reads the records from an index on.
func (r *run) journal(first uint64) (records []*pb.JournalRecord, err error) {
	request := &pb.ReadJournalRequest{Namespace: r.w.Namespace, Queue: r.w.Queue, Id: r.a.Id, FirstIndex: first}
	for {
		var page *pb.ReadJournalResponse
		err = r.w.call(r.lease.over, func(ctx context.Context, node *grpc.ClientConn) (err error) {
			page, err = pb.NewExecutionServiceClient(node).ReadJournal(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		records = append(records, page.Records...)
		if page.NextIndex == 0 {
			return records, nil
		}
		request.FirstIndex = page.NextIndex
	}
}
