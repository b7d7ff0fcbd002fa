// Package durable is a worker of durable functions, with only the stubs of the proto files.
// docs/durable-protocol.md says what it has to do; this file is what a durable function calls.
//
// A durable function runs in tasks: goroutines of which one runs at a time, and which wait only in the calls of this
// file. It must not use the clock, chance, channels or other goroutines by itself, but in steps.
package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "querator.test/client/querator/v1"
)

// Function is a durable function. A worker in another language has other versions of it.
type Function struct {
	Version string
	Run     func(t *Task, arguments []json.RawMessage) (any, error)
}

var (
	// ErrCancelled is what a wait returns when the execution is to end. Return it.
	ErrCancelled = errors.New("the execution was cancelled")
	// ErrTimeout is the end of a time limit.
	ErrTimeout = errors.New("the time is over")
	// ErrInterrupted is of a step at most once that has begun, and whose end is not known.
	ErrInterrupted = &Failure{Type: "querator.durable.errors.StepInterrupted", Text: "the step has begun",
		Args: []any{"the step has begun"}}
)

// Failure is an exception in a journal. Python raises a type that it knows if Args are there.
type Failure struct {
	Type string `json:"type"`
	Text string `json:"text"`
	Args []any  `json:"args,omitempty"`
}

func (f *Failure) Error() string { return f.Type + ": " + f.Text }

// Is compares types: errors.Is(err, durable.ErrInterrupted).
func (f *Failure) Is(other error) bool {
	o, ok := other.(*Failure)
	return ok && o.Type == f.Type
}

// NextRun is returned as an error: the run ends, and the next one has these arguments.
type NextRun struct{ Arguments []any }

func (*NextRun) Error() string { return "the execution continues as its next run" }

// Step says how a function becomes a step.
type Step struct {
	Name       string
	Attempts   int           // 0: one.
	Delay      time.Duration // Before each further attempt.
	ReadsOnly  bool          // It may begin before earlier results are durable.
	AtMostOnce bool
}

// Attempt is what a step knows of where it runs. Key is the same for all attempts.
type Attempt struct {
	context.Context
	Key    string
	Number int
}

// Do runs a step: its result, or its last error, is recorded once.
func Do[T any](t *Task, step Step, function func(Attempt) (T, error)) (T, error) {
	t.live()
	c, o := t.code, t.operation("step", step.Name)
	o.step, o.attempt, o.after = &step, 1, c.made
	o.effect = func(a Attempt) (any, error) { return function(a) }
	c.fresh = append(c.fresh, o)
	err := t.await(o.result)
	if !o.result.done {
		c.abandoned = append(c.abandoned, o.path)
	}
	delete(c.pending, o.path)
	return decoded[T](t, o, err)
}

// Sleep is a timer.
func (t *Task) Sleep(d time.Duration) error {
	t.live()
	if d <= 0 {
		return nil
	}
	timer := t.timer(d)
	defer t.code.withdraw(timer.path)
	return t.await(timer.result)
}

// Now is the time of the last event.
func (t *Task) Now() time.Time { return time.UnixMilli(int64(t.code.nowMs)).UTC() }

// UUID is the same in each replay.
func (t *Task) UUID() string {
	t.line.draws++
	return t.code.id.UUID(t.line.path, t.line.draws)
}

// Patched says whether the newer way is taken.
func (t *Task) Patched(name string) bool {
	t.live()
	c := t.code
	if known, found := c.patches[name]; found {
		return known
	}
	c.patches[name] = c.atEnd
	if c.atEnd {
		c.record(patched, PatchPath(name), name, nil, c.nowMs)
	}
	return c.atEnd
}

// Publish lets readers outside see a value.
func (t *Task) Publish(key string, value any) {
	t.live()
	c := t.code
	c.published = slices.DeleteFunc(c.published, func(p *pb.PublishedValue) bool { return p.Key == key })
	c.published = append(c.published, &pb.PublishedValue{Key: key, Value: encoded(value)})
}

// Receive gives the next signal of a name. Timeout 0: without a limit.
func Receive[T any](t *Task, name string, timeout time.Duration) (T, error) {
	t.live()
	c, limit := t.code, (*operation)(nil)
	if timeout > 0 {
		limit = t.timer(timeout)
		defer c.withdraw(limit.path)
	}
	o := t.operation("receive", name)
	box := c.mailbox(name)
	if len(box.signals) > 0 {
		o.result.set(box.take(), nil)
	} else {
		box.waiting = append(box.waiting, o)
	}
	err := t.within(o.result, limit)
	box.waiting = slices.DeleteFunc(box.waiting, func(each *operation) bool { return each == o })
	delete(c.pending, o.path)
	return decoded[T](t, o, err)
}

// Promise is a value from outside, once, for its token.
type Promise struct {
	Token string
	o     *operation
}

// NewPromise makes a promise.
func (t *Task) NewPromise() *Promise {
	t.live()
	o := t.operation("promise", "")
	delete(t.code.pending, o.path)
	t.code.promises[o.path] = o
	return &Promise{t.code.id.Token(o.path), o}
}

// Wait gives the value of a promise, or a Failure. Timeout 0: without a limit.
func Wait[T any](t *Task, p *Promise, timeout time.Duration) (T, error) {
	t.live()
	var limit *operation
	if timeout > 0 && !p.o.result.done {
		limit = t.timer(timeout)
		defer t.code.withdraw(limit.path)
	}
	p.o.awaited++
	err := t.within(p.o.result, limit)
	p.o.awaited--
	return decoded[T](t, p.o, err)
}

// Child is an execution that this one has started.
type Child struct {
	ID    string
	start Path
	o     *operation
}

// Spawn starts a child; its id is made if it is empty. A Failure says why it was not started.
func (t *Task) Spawn(function, version, id string, arguments ...any) (*Child, error) {
	t.live()
	c, o := t.code, t.operation("spawn", function)
	if id == "" {
		id = c.id.ChildID(o.path)
	}
	child := &Child{id, o.path, &operation{kind: "child", path: Below(o.path, 1), name: function, result: &future{}}}
	o.child = child
	c.starts = append(c.starts, &pb.ChildStart{Path: []byte(o.path), Id: id, Function: function, Version: version,
		Arguments: encodedArguments(arguments)})
	err := t.await(o.result)
	delete(c.pending, o.path)
	if !o.result.done {
		unsent := func(start *pb.ChildStart) bool { return string(start.Path) == o.path }
		c.starts = slices.DeleteFunc(c.starts, unsent)
		c.left[o.path] = o // It may be on its way: then it is cancelled.
	}
	return child, err
}

// Result gives the result of a child. If the wait is cancelled, so is the child.
func Result[T any](t *Task, child *Child) (T, error) {
	t.live()
	child.o.awaited++
	err := t.await(child.o.result)
	child.o.awaited--
	if errors.Is(err, ErrCancelled) && !child.o.result.done {
		t.Cancel(child)
	}
	return decoded[T](t, child.o, err)
}

// Cancel cancels a child, unless it has ended.
func (t *Task) Cancel(child *Child) {
	t.live()
	if !child.o.result.done && !slices.Contains(t.code.cancels, child.start) {
		t.code.cancels = append(t.code.cancels, child.start)
	}
}

// Gather runs tasks beside each other. The first error is returned at once; the others continue.
func (t *Task) Gather(functions ...func(*Task) error) error {
	t.live()
	all, left := &future{}, len(functions)
	all.done = left == 0
	tasks := make([]*Task, len(functions))
	for n, function := range functions {
		tasks[n] = t.code.begin(&line{path: t.next()}, func(task *Task) {
			err := function(task)
			left--
			if err != nil || left == 0 {
				all.set(nil, err)
			}
		})
	}
	err := t.await(all)
	if errors.Is(err, ErrCancelled) && !all.done {
		for _, task := range tasks {
			task.cancel()
		}
		for left > 0 {
			all = &future{}
			_ = t.await(all)
		}
	}
	return err
}

// Call calls a durable function as a part of this execution. It gives out its result, and nothing else.
func Call[T any](t *Task, name string, function func(*Task) (T, error)) (T, error) {
	t.live()
	path, above := t.next(), t.line
	if t.code.folded[path] {
		o := t.wait("call", path, name)
		err := t.await(o.result)
		delete(t.code.pending, path)
		return decoded[T](t, o, err)
	}
	t.line = &line{path: path}
	value, err := function(t)
	t.line = above
	var none T
	switch {
	case errors.Is(err, ErrCancelled):
		return none, err
	case err != nil:
		return none, asFailure(err)
	}
	o := &operation{kind: "call", name: name, result: &future{}}
	o.result.set(encoded(value), nil)
	return decoded[T](t, o, nil)
}

func decoded[T any](t *Task, o *operation, err error) (T, error) {
	var value T
	if err == nil && o.result.value != nil {
		if broken := json.Unmarshal(o.result.value, &value); broken != nil {
			t.stick(fmt.Sprintf("the result of %s %s does not decode: %v", o.kind, o.name, broken))
		}
	}
	return value, err
}

func encoded(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // A value of the program that has no JSON.
	}
	return data
}

func encodedArguments(arguments []any) []byte {
	if arguments == nil {
		arguments = []any{}
	}
	return encoded([]any{arguments, struct{}{}})
}

func asFailure(err error) *Failure {
	var failure *Failure
	if errors.As(err, &failure) {
		return failure
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	return &Failure{Type: "go.error", Text: text[:min(len(text), 1000)]}
}
