// Worker runs the function `program` of ../../durable_program.py in Go.
//
//	worker ADDRESS,ADDRESS,… QUEUE LEDGER VERSION LEASE
//	worker vectors FILE
//
// The first one works until SIGTERM. If CHANGED is set, its code is another one: it names its steps otherwise. The second one compares what package durable makes with the test vectors.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"querator.test/client/durable"
)

var ledger *os.File

func main() {
	if os.Args[1] == "vectors" {
		vectors(os.Args[2])
		return
	}
	lease, err := time.ParseDuration(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	if ledger, err = os.OpenFile(os.Args[3], os.O_WRONLY|os.O_APPEND, 0); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	program := durable.Function{Version: os.Args[4], Run: run}
	worker := &durable.Worker{Addresses: strings.Split(os.Args[1], ","), Namespace: "default", Queue: os.Args[2],
		Functions: map[string]durable.Function{"program": program}, Concurrency: 200, LeaseTimeout: lease,
		ClientID: "go-" + rand.Text()}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(t *durable.Task, arguments []json.RawMessage) (any, error) {
	var operations []operation
	if err := json.Unmarshal(arguments[0], &operations); err != nil {
		return nil, err
	}
	return all(t, operations)
}

// operation is a list: what to do, and its arguments.
type operation []json.RawMessage

// read decodes an argument.
func read[T any](o operation, n int) (value T) {
	if n < len(o) {
		if err := json.Unmarshal(o[n], &value); err != nil {
			panic(err)
		}
	}
	return value
}

func all(t *durable.Task, operations []operation) ([]any, error) {
	given := []any{}
	for _, o := range operations {
		value, err := one(t, o)
		if err != nil {
			return nil, err
		}
		given = append(given, value)
	}
	return given, nil
}

func one(t *durable.Task, o operation) (any, error) {
	name := ""
	_ = json.Unmarshal(o[min(1, len(o)-1)], &name)
	name += os.Getenv("CHANGED")
	ms := func(n int) time.Duration { return time.Duration(read[float64](o, n) * float64(time.Millisecond)) }
	switch kind := read[string](o, 0); kind {
	case "step", "once", "reads":
		step := durable.Step{Name: name, AtMostOnce: kind == "once", ReadsOnly: kind == "reads"}
		value, err := durable.Do(t, step, func(a durable.Attempt) (json.RawMessage, error) {
			number := begun(a)
			select {
			case <-a.Done():
				return nil, a.Err()
			case <-time.After(ms(3)):
			}
			if string(o[2]) == "null" {
				return json.Marshal(number)
			}
			return o[2], nil
		})
		if errors.Is(err, durable.ErrInterrupted) {
			return "interrupted", nil
		}
		return value, err
	case "fails":
		_, err := durable.Do(t, durable.Step{Name: name}, func(a durable.Attempt) (any, error) {
			begun(a)
			return nil, valueError(read[string](o, 2))
		})
		return text(err)
	case "flaky":
		failures := read[int](o, 2)
		step := durable.Step{Name: name, Attempts: failures + 1, Delay: ms(3)}
		return durable.Do(t, step, func(a durable.Attempt) (int, error) {
			begun(a)
			if a.Number <= failures {
				return 0, fmt.Errorf("attempt %d", a.Number)
			}
			return a.Number, nil
		})
	case "sleep":
		return nil, t.Sleep(ms(1))
	case "receive":
		value, err := durable.Receive[any](t, name, ms(2))
		if errors.Is(err, durable.ErrTimeout) {
			return "timeout", nil
		}
		return value, err
	case "promise":
		promise := t.NewPromise()
		t.Publish(name, promise.Token)
		value, err := durable.Wait[any](t, promise, 0)
		if err != nil {
			return text(err)
		}
		return value, nil
	case "gather":
		parts := read[[][]operation](o, 1)
		given, functions := make([]any, len(parts)), make([]func(*durable.Task) error, len(parts))
		for n, part := range parts {
			functions[n] = func(t *durable.Task) (err error) {
				given[n], err = all(t, part)
				return err
			}
		}
		return given, t.Gather(functions...)
	case "call":
		part := read[[]operation](o, 1)
		return durable.Call(t, "part", func(t *durable.Task) ([]any, error) { return all(t, part) })
	case "spawn":
		child, err := t.Spawn("program", "-", "", o[1])
		if err == nil {
			var value any
			if value, err = durable.Result[any](t, child); err == nil {
				return value, nil
			}
		}
		return text(err)
	case "uuid":
		return t.UUID(), nil
	case "patched":
		return t.Patched(name), nil
	case "publish":
		t.Publish(name, o[2])
		return nil, nil
	case "raise":
		return nil, valueError(name)
	case "again":
		return nil, &durable.NextRun{Arguments: []any{o[1]}}
	default:
		return nil, fmt.Errorf("no operation %s", kind)
	}
}

func valueError(text string) error {
	return &durable.Failure{Type: "builtins.ValueError", Text: text, Args: []any{text}}
}

// text gives the text of a failure; what is none is returned.
func text(err error) (any, error) {
	var failure *durable.Failure
	if errors.As(err, &failure) {
		return failure.Text, nil
	}
	return nil, err
}

// begun writes an attempt to the ledger, and returns its number.
func begun(a durable.Attempt) string {
	number := rand.Text()
	if _, err := fmt.Fprintln(ledger, a.Key, number); err != nil {
		log.Fatal(err)
	}
	return number
}
