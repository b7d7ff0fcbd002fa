package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "querator.test/client/querator/v1"
)

// code is an execution in memory: what it is given, what it waits for, and what it has for its partition. One
// goroutine at a time is in it: its owner, or the task to which the owner has given the turn.
type code struct {
	id       Identity
	function string
	version  string
	ran      string // The version that has made the journal.
	main     *Task
	end      *pb.RecordProgressRequest // The part that says how the code has ended.
	stuck    string

	nowMs, seen uint64
	pending     map[Path]*operation // What the code waits for, but promises and children.
	promises    map[Path]*operation
	left        map[Path]*operation // Starts of children for which the code does not wait any more.
	early       map[Path]*pb.JournalRecord
	retries     map[Path]*operation // Steps by the timers before their next attempts.
	withdrawn   map[Path]bool       // Timers that may fire for nothing.
	folded      map[Path]bool
	patches     map[string]bool
	mailboxes   map[string]*mailbox
	fresh       []*operation // Steps that were called, and are not taken on.
	steps       []*operation // Steps whose next attempt has not begun.
	abandoned   []Path
	atEnd       bool

	cancelled    bool
	cancelReason []byte

	ready   []*Task
	tasks   []*Task
	yielded chan struct{}
	away    bool

	// For the partition.
	records      []*pb.JournalRecord
	made         int // Records of this worker that the code was given.
	acknowledged int
	timers       map[Path]uint64
	starts       []*pb.ChildStart
	cancels      []Path
	published    []*pb.PublishedValue
}

// operation is something that the code waits for.
type operation struct {
	kind, path, name string
	result           *future
	awaited          int // Tasks that wait, of a promise or the result of a child.

	dueMs    uint64 // Of a timer.
	atServer bool   // The partition has the timer, or that of the next attempt.

	step      *Step
	effect    func(Attempt) (any, error)
	attempt   int
	after     int // The records that must be acknowledged before it begins.
	retryAtMs uint64
	recorded  bool // The last attempt is in the journal.
	wasBegun  bool // The journal has STEP_BEGUN.
	underWay  bool

	child *Child
}

type mailbox struct {
	signals []*pb.JournalRecord
	waiting []*operation
}

func (m *mailbox) take() []byte {
	first := m.signals[0]
	m.signals = m.signals[1:]
	return first.Payload
}

func newCode(id Identity, name string, function Function, start *pb.JournalRecord) (*code, error) {
	c := &code{id: id, function: name, version: function.Version, yielded: make(chan struct{}), nowMs: start.AtMs,
		pending: map[Path]*operation{}, promises: map[Path]*operation{}, left: map[Path]*operation{},
		early: map[Path]*pb.JournalRecord{}, retries: map[Path]*operation{}, withdrawn: map[Path]bool{},
		folded: map[Path]bool{}, patches: map[string]bool{}, mailboxes: map[string]*mailbox{}, timers: map[Path]uint64{}}
	var given [2]json.RawMessage
	var arguments []json.RawMessage
	if json.Unmarshal(start.Payload, &given) != nil || json.Unmarshal(given[0], &arguments) != nil {
		return nil, fmt.Errorf("the arguments are not a list of two: %.100s", start.Payload)
	}
	c.main = c.begin(&line{}, func(t *Task) {
		value, err := function.Run(t, arguments)
		c.close(value, err)
	})
	return c, nil
}

func (c *code) close(value any, err error) {
	next, isNext := err.(*NextRun)
	switch {
	case isNext:
		run := &pb.NewRun{Arguments: encodedArguments(next.Arguments)}
		var unread []uint64
		for _, box := range c.mailboxes {
			for _, signal := range box.signals {
				unread = append(unread, signal.Index)
			}
		}
		slices.Sort(unread)
		for _, index := range unread {
			run.Unread = append(run.Unread, &pb.NewRun_Run{First: index, Count: 1})
		}
		c.end = &pb.RecordProgressRequest{Then: &pb.RecordProgressRequest_NewRun{NewRun: run}}
	case err == ErrCancelled && c.cancelled:
		c.end = closing(cancelled, c.cancelReason)
	case err != nil:
		c.end = closing(failed, encoded(asFailure(err)))
	default:
		c.end = closing(completed, encoded(value))
	}
}

func closing(outcome pb.RecordKind, payload []byte) *pb.RecordProgressRequest {
	return &pb.RecordProgressRequest{Then: &pb.RecordProgressRequest_Close{
		Close: &pb.Close{Outcome: outcome, Payload: payload}}}
}

// --- events --------------------------------------------------------------------------------------

const (
	stepDone        = pb.RecordKind_RECORD_KIND_STEP_DONE
	stepFailed      = pb.RecordKind_RECORD_KIND_STEP_FAILED
	attemptFailed   = pb.RecordKind_RECORD_KIND_ATTEMPT_FAILED
	stepBegun       = pb.RecordKind_RECORD_KIND_STEP_BEGUN
	timerDone       = pb.RecordKind_RECORD_KIND_TIMER_DONE
	callDone        = pb.RecordKind_RECORD_KIND_CALL_DONE
	callFailed      = pb.RecordKind_RECORD_KIND_CALL_FAILED
	patched         = pb.RecordKind_RECORD_KIND_PATCHED
	completed       = pb.RecordKind_RECORD_KIND_COMPLETED
	failed          = pb.RecordKind_RECORD_KIND_FAILED
	cancelled       = pb.RecordKind_RECORD_KIND_CANCELLED
	signal          = pb.RecordKind_RECORD_KIND_SIGNAL
	resolved        = pb.RecordKind_RECORD_KIND_RESOLVED
	rejected        = pb.RecordKind_RECORD_KIND_REJECTED
	timerFired      = pb.RecordKind_RECORD_KIND_TIMER_FIRED
	cancel          = pb.RecordKind_RECORD_KIND_CANCEL
	terminated      = pb.RecordKind_RECORD_KIND_TERMINATED
	callDoneLater   = pb.RecordKind_RECORD_KIND_CALL_DONE_LATER
	callFailedLater = pb.RecordKind_RECORD_KIND_CALL_FAILED_LATER
	childStarted    = pb.RecordKind_RECORD_KIND_CHILD_STARTED
	childRefused    = pb.RecordKind_RECORD_KIND_CHILD_REFUSED
	childDone       = pb.RecordKind_RECORD_KIND_CHILD_DONE
	childFailed     = pb.RecordKind_RECORD_KIND_CHILD_FAILED
	childCancelled  = pb.RecordKind_RECORD_KIND_CHILD_CANCELLED
	childTerminated = pb.RecordKind_RECORD_KIND_CHILD_TERMINATED
	childLost       = pb.RecordKind_RECORD_KIND_CHILD_LOST

	firstArrival = signal
)

// waitOf says of which kind the operation at the path of a record is.
var waitOf = map[pb.RecordKind]string{
	stepDone: "step", stepFailed: "step", attemptFailed: "step", stepBegun: "step", timerDone: "timer",
	timerFired: "timer", callDone: "call", callFailed: "call", callDoneLater: "call", callFailedLater: "call",
	resolved: "promise", rejected: "promise", childStarted: "spawn", childRefused: "spawn", childDone: "child",
	childFailed: "child", childCancelled: "child", childTerminated: "child", childLost: "child",
}

// Differs says where the code does not do what the journal says. Record is the place; or Timer is one of the server.
type Differs struct {
	Record uint64
	Timer  Path
	text   string
}

func (d *Differs) Error() string { return d.text }

// InOrder is the order in which the code is given its records.
func InOrder(journal []*pb.JournalRecord) []*pb.JournalRecord {
	var arrivals, order []*pb.JournalRecord
	for _, r := range journal {
		if r.Kind >= firstArrival {
			arrivals = append(arrivals, r)
		}
	}
	for _, r := range journal {
		if r.Kind >= firstArrival {
			continue
		}
		for len(arrivals) > 0 && arrivals[0].Index <= r.After {
			order, arrivals = append(order, arrivals[0]), arrivals[1:]
		}
		order = append(order, r)
	}
	return append(order, arrivals...)
}

// load gives the code its journal. `ran` is the version that has made it, `timers` are those of the server, and `seen`
// is the last arrival that an earlier worker has given to the code.
func (c *code) load(journal []*pb.JournalRecord, ran string, timers [][]byte, seen uint64) error {
	c.ran = ran
	records := InOrder(journal)[1:]
	for _, r := range records {
		c.seen = max(c.seen, r.After) // A signal of a folded call is gone, but was seen.
		if waitOf[r.Kind] == "call" {
			c.folded[string(r.Path)] = true
		}
		if r.Kind == patched {
			c.patches[r.Name] = true
		}
	}
	records = slices.DeleteFunc(records, func(r *pb.JournalRecord) bool { return r.Kind == patched })
	c.atEnd = len(records) == 0 && len(timers) == 0
	c.run()
	for n, r := range records {
		// With a timer that is set, an earlier worker has decided already what comes next.
		c.atEnd = n == len(records)-1 && len(timers) == 0
		if r.Kind < firstArrival {
			c.published = nil // All of that is at the partition.
		}
		if err := c.deliver(r); err != nil {
			return err
		}
		if c.stuck != "" {
			return errors.New(c.stuck)
		}
	}
	c.atEnd = true
	for _, r := range records {
		if r.Kind >= firstArrival && c.seen < r.Index && r.Index <= seen {
			return c.mismatch(r) // The code has ended before.
		}
	}
	c.seen = max(c.seen, seen)
	for _, each := range timers {
		path := string(each)
		switch o, retry := c.pending[path], c.retries[path]; {
		case o != nil && o.kind == "timer":
			o.atServer = true
		case retry != nil:
			retry.atServer = true
		case c.had(path):
			c.timers[path] = 0
		case c.version != ran && ran != "-":
			return c.differs(&Differs{Timer: path}, "waits        for a timer   "+versioned(ran), path)
		}
	}
	c.settle()
	return nil
}

func (c *code) isOver() bool { return c.end != nil || c.stuck != "" }

// had says whether a timer was withdrawn, or was of a call whose records are gone.
func (c *code) had(path Path) bool {
	for call := range c.folded {
		if strings.HasPrefix(path, call) {
			return true
		}
	}
	return c.withdrawn[path]
}

// arrive gives live code what has arrived.
func (c *code) arrive(records []*pb.JournalRecord) {
	for _, r := range records {
		if r.Kind >= firstArrival && r.Index > c.seen && !c.isOver() {
			if err := c.deliver(r); err != nil {
				c.stuck = err.Error()
			}
		}
	}
	c.settle()
}

func (c *code) deliver(r *pb.JournalRecord) error {
	c.nowMs = max(c.nowMs, r.AtMs)
	isEnd := r.Kind == completed || r.Kind == failed || r.Kind == cancelled
	if c.end != nil {
		if !isEnd && (r.Kind < firstArrival || waitOf[r.Kind] == "call") {
			return c.mismatch(r)
		}
		return nil
	}
	if r.Kind >= firstArrival {
		c.seen = max(c.seen, r.Index)
	}
	switch {
	case r.Kind == signal:
		if box := c.mailbox(r.Name); len(box.waiting) > 0 {
			first := box.waiting[0]
			box.waiting = box.waiting[1:]
			first.result.set(r.Payload, nil)
		} else {
			box.signals = append(box.signals, r)
		}
		c.run()
	case r.Kind == cancel:
		c.cancelled, c.cancelReason = true, r.Payload
		c.main.cancel()
		c.run()
	case r.Kind == terminated:
	default:
		return c.deliverAtPath(r)
	}
	return nil
}

func (c *code) at(path Path) *operation {
	for _, all := range []map[Path]*operation{c.pending, c.promises, c.left} {
		if o := all[path]; o != nil {
			return o
		}
	}
	return nil
}

func (c *code) deliverAtPath(r *pb.JournalRecord) error {
	path := string(r.Path)
	o := c.at(path)
	if r.Kind == timerFired {
		delete(c.timers, path)
		if retry := c.retries[path]; o == nil && retry != nil {
			retry.retryAtMs, retry.atServer = 0, false
			delete(c.retries, path)
			return nil
		}
		if o == nil && c.had(path) {
			return nil
		}
	}
	if o == nil && c.id.Run != c.id.Origin && (r.Kind == resolved || r.Kind == rejected) {
		c.early[path] = r // The code of a rewound execution has not made the promise again.
		return nil
	}
	named := o != nil && (o.name == r.Name || o.kind == "timer" || o.kind == "promise")
	if !named || waitOf[r.Kind] != o.kind {
		return c.mismatch(r)
	}
	c.give(o, r)
	return c.giveEarly()
}

func (c *code) giveEarly() error {
	for path, r := range c.early {
		if o := c.promises[path]; o != nil {
			delete(c.early, path)
			c.give(o, r)
			return c.giveEarly()
		}
	}
	return nil
}

// give ends an operation, or an attempt, by what a record says.
func (c *code) give(o *operation, r *pb.JournalRecord) {
	value, err := r.Payload, error(nil)
	switch r.Kind {
	case stepBegun:
		o.wasBegun = true
		return
	case attemptFailed:
		var attempt struct {
			number int
			dueMs  uint64
		}
		if json.Unmarshal(r.Payload, &[]any{&attempt.number, &attempt.dueMs}) != nil {
			c.stuck = fmt.Sprintf("a failed attempt cannot be read: %.100s", r.Payload)
		}
		c.again(o, attempt.number, attempt.dueMs, true)
		return
	case stepFailed, callFailed, callFailedLater, rejected, childFailed:
		failure := &Failure{}
		if json.Unmarshal(r.Payload, failure) != nil {
			c.stuck = fmt.Sprintf("an exception cannot be read: %.100s", r.Payload)
		}
		err = failure
	case childCancelled:
		err = &Failure{Type: "querator.durable.errors.ExecutionCancelled", Text: string(r.Payload)}
	case childTerminated:
		err = &Failure{Type: "querator.durable.errors.ExecutionTerminated", Text: string(r.Payload)}
	case childLost:
		err = &Failure{Type: "querator.durable.errors.RunTooLong", Text: "the result of the child has no room"}
	case childRefused:
		err = &Failure{Type: "querator.durable.errors.ChildRefused", Text: string(r.Payload)}
	case childStarted:
		c.promises[o.child.o.path] = o.child.o
		if c.left[o.path] != nil {
			c.cancels = append(c.cancels, o.path)
		}
	}
	switch o.kind {
	case "spawn":
		delete(c.left, o.path)
		c.starts = slices.DeleteFunc(c.starts, func(s *pb.ChildStart) bool { return string(s.Path) == o.path })
	case "child":
		c.cancels = slices.DeleteFunc(c.cancels, func(p Path) bool { return Below(p, 1) == o.path })
	}
	delete(c.pending, o.path)
	o.result.set(value, err)
	c.run()
}

func (c *code) mismatch(r *pb.JournalRecord) error {
	word := waitOf[r.Kind]
	if word == "" {
		word = strings.ToLower(strings.TrimPrefix(r.Kind.String(), "RECORD_KIND_"))
	}
	at := time.UnixMilli(int64(r.AtMs)).UTC().Format(time.DateTime)
	was := fmt.Sprintf("record %-5d %s %s   %s   %s%s   path %s", r.Index, word, orDash(r.Name), orDash(r.Site),
		versioned(c.ran), at, Shown(string(r.Path)))
	return c.differs(&Differs{Record: r.Index}, was, string(r.Path))
}

func (c *code) differs(d *Differs, was string, path Path) error {
	now := "nothing that waits for an event   " + versioned(c.version)
	if o := c.at(path); o != nil {
		now = fmt.Sprintf("%s %s   %spath %s", o.kind, orDash(o.name), versioned(c.version), Shown(path))
	} else if c.end != nil {
		now = fmt.Sprintf("%s has ended   %s", c.function, versioned(c.version))
	} else if waiting := c.waits(); len(waiting) > 0 {
		now = fmt.Sprintf("%s %s   %spath %s; nothing waits at the path of the record", waiting[0][1],
			orDash(waiting[0][2]), versioned(c.version), waiting[0][0])
	}
	d.text = fmt.Sprintf("%s %q, run %d: the code does not do what the journal says.\n  %s\n  now          %s\n"+
		"Nothing was run.", c.function, c.id.ID, c.id.Run, was, now)
	return d
}

// waits says what the code waits for: path, kind, name.
func (c *code) waits() [][3]string {
	found := [][3]string{}
	for path, o := range c.pending {
		found = append(found, [3]string{Shown(path), o.kind, o.name})
	}
	for path, o := range c.promises {
		if o.awaited > 0 && !o.result.done {
			found = append(found, [3]string{Shown(path), o.kind, o.name})
		}
	}
	slices.SortFunc(found, func(a, b [3]string) int { return strings.Compare(a[0], b[0]) })
	return found
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func versioned(version string) string { return "version " + version + "   " }
