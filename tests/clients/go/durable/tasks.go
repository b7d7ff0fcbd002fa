package durable

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// line numbers what one task, or one call, begins.
type line struct {
	path         Path
	count, draws uint64
}

// Task is a part of the code that waits by itself.
type Task struct {
	code   *code
	line   *line
	turn   chan struct{}
	isDone bool
	queued bool
	toEnd  bool // A cancellation that it was not given yet.
}

type future struct {
	done    bool
	value   json.RawMessage
	err     error
	waiting []*Task
}

func (f *future) set(value []byte, err error) {
	if f.done {
		return
	}
	f.done, f.value, f.err = true, value, err
	for _, task := range f.waiting {
		task.wakeUp()
	}
	f.waiting = nil
}

func (c *code) begin(line *line, body func(*Task)) *Task {
	t := &Task{code: c, line: line, turn: make(chan struct{})}
	c.tasks = append(c.tasks, t)
	go func() {
		<-t.turn
		defer func() {
			if broken := recover(); broken != nil {
				c.stuck = fmt.Sprintf("the code panics: %v\n%.600s", broken, debug.Stack())
			}
			t.isDone = true
			c.yielded <- struct{}{}
		}()
		if !c.away {
			body(t)
		}
	}()
	t.wakeUp()
	return t
}

func (t *Task) wakeUp() {
	if !t.queued && !t.isDone {
		t.queued = true
		t.code.ready = append(t.code.ready, t)
	}
}

// run lets the code run until it waits.
func (c *code) run() {
	for len(c.ready) > 0 && c.end == nil && c.stuck == "" {
		t := c.ready[0]
		c.ready, t.queued = c.ready[1:], false
		t.turn <- struct{}{}
		<-c.yielded
	}
}

// putAway ends all tasks; their durable calls have no effect.
func (c *code) putAway() {
	c.away = true
	for n := 0; n < len(c.tasks); n++ {
		if t := c.tasks[n]; !t.isDone {
			t.turn <- struct{}{}
			<-c.yielded
		}
	}
}

// live ends a task whose execution leaves the memory.
func (t *Task) live() {
	if t.code.away {
		runtime.Goexit()
	}
}

func (t *Task) yield() {
	t.code.yielded <- struct{}{}
	<-t.turn
	t.live()
}

func (t *Task) await(f *future) error { return t.within(f, nil) }

// within waits for a future, or a time limit.
func (t *Task) within(f *future, limit *operation) error {
	for {
		switch {
		case t.toEnd:
			t.toEnd = false
			return ErrCancelled
		case f.done:
			return f.err
		case limit != nil && limit.result.done:
			return ErrTimeout
		}
		f.waiting = append(f.waiting, t)
		if limit != nil {
			limit.result.waiting = append(limit.result.waiting, t)
		}
		t.yield()
	}
}

func (t *Task) cancel() {
	t.toEnd = true
	t.wakeUp()
}

// stick ends the run of the code: a person must help.
func (t *Task) stick(why string) {
	t.code.stuck = why
	t.yield()
}

func (t *Task) next() Path {
	t.line.count++
	return Below(t.line.path, t.line.count)
}

func (t *Task) operation(kind, name string) *operation { return t.wait(kind, t.next(), name) }

func (t *Task) wait(kind string, path Path, name string) *operation {
	o := &operation{kind: kind, path: path, name: name, result: &future{}}
	t.code.pending[path] = o
	return o
}

func (t *Task) timer(d time.Duration) *operation {
	o := t.operation("timer", "")
	o.dueMs = t.code.nowMs + uint64((d+time.Millisecond-1)/time.Millisecond)
	return o
}

// withdraw ends a timer for which the code does not wait any more.
func (c *code) withdraw(path Path) {
	o := c.pending[path]
	if o == nil || c.away {
		return
	}
	delete(c.pending, path)
	c.withdrawn[path] = true
	if o.atServer {
		c.timers[path] = 0
	}
}

func (c *code) mailbox(name string) *mailbox {
	box := c.mailboxes[name]
	if box == nil {
		box = &mailbox{}
		c.mailboxes[name] = box
	}
	return box
}
