package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"querator.test/client/durable"
	pb "querator.test/client/querator/v1"
)

type record struct {
	Index, After  uint64
	Kind, Name    string
	Path, Payload string
	AtMs          uint64 `json:"at_ms"`
}

type replay struct {
	Name    string
	Journal []record
	Timers  []string
	Seen    uint64
	Gives   json.RawMessage
}

// vectors compares each vector of a file, prints how many there are, and exits with 1 if one differs.
func vectors(file string) {
	var given struct {
		Paths []struct {
			Elements    []uint64
			Path, Shown string
		}
		RefusedPaths []string `json:"refused_paths"`
		Patches      []struct{ Name, Path string }
		Identities   []struct {
			durable.Identity
			Execution                  uint64
			OriginRun                  uint64 `json:"origin_run"`
			Secret, Path, Proof, Token string
			SecondUUID                 string `json:"second_uuid"`
			ChildID                    string `json:"child_id"`
			StepKey                    string `json:"step_key"`
		}
		Orders []struct {
			Afters []*uint64
			Given  []uint64
		}
		Replays []struct {
			Name    string
			Journal []record
			Gives   []json.RawMessage
		}
		Changes []replay
		Begins  []struct {
			Name    string
			Journal []record
			Happens []string
			Begins  [][]string
		}
	}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &given)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	count, wrong := 0, 0
	same := func(what string, got, want any) {
		count++
		if !reflect.DeepEqual(got, want) {
			wrong++
			fmt.Fprintf(os.Stderr, "%s: got %v, and the vector has %v\n", what, got, want)
		}
	}
	for _, v := range given.Paths {
		path := ""
		for _, element := range v.Elements {
			path = durable.Below(path, element)
		}
		elements, _ := durable.Elements(path)
		same("path "+v.Shown, hex.EncodeToString([]byte(path)), v.Path)
		same("elements "+v.Shown, elements, v.Elements)
		same("shown "+v.Shown, durable.Shown(path), v.Shown)
	}
	for _, v := range given.RefusedPaths {
		_, err := durable.Elements(bytesOf(v))
		same("refused path "+v, err != nil, true)
	}
	for _, v := range given.Patches {
		same("patch "+v.Name, hex.EncodeToString([]byte(durable.PatchPath(v.Name))), v.Path)
	}
	var first durable.Identity
	for n, v := range given.Identities {
		id := v.Identity
		id.Number, id.Origin, id.Secret = v.Execution, v.OriginRun, []byte(bytesOf(v.Secret))
		if n == 0 {
			first = id
		}
		path := bytesOf(v.Path)
		same("proof", hex.EncodeToString(id.Proof(path)), v.Proof)
		same("token", id.Token(path), v.Token)
		same("UUID", id.UUID(path, 2), v.SecondUUID)
		same("id of a child", id.ChildID(path), v.ChildID)
		same("step key", id.StepKey(path, "charge"), v.StepKey)
	}
	for n, v := range given.Orders {
		var journal []*pb.JournalRecord
		for index, after := range v.Afters {
			one := &pb.JournalRecord{Index: uint64(index), Kind: pb.RecordKind_RECORD_KIND_SIGNAL}
			if after != nil {
				one.Kind, one.After = pb.RecordKind_RECORD_KIND_STEP_DONE, *after
			}
			journal = append(journal, one)
		}
		var order []uint64
		for _, one := range durable.InOrder(journal) {
			order = append(order, one.Index)
		}
		same(fmt.Sprintf("order %d", n), order, v.Given)
	}
	for _, v := range given.Replays {
		for n, gives := range v.Gives {
			same(fmt.Sprintf("%s, %d records", v.Name, n+1), replayed(first, v.Journal[:n+1], nil, 0), plain(gives))
		}
	}
	for _, v := range given.Changes {
		same(v.Name, replayed(first, v.Journal, v.Timers, v.Seen), plain(v.Gives))
	}
	for _, v := range given.Begins {
		start := journalOf(v.Journal)[0]
		same(v.Name, durable.Begins(first, "program", program, start, v.Happens), v.Begins)
	}
	fmt.Println(count)
	if wrong > 0 {
		os.Exit(1)
	}
}

var program = durable.Function{Version: "go-1", Run: run}

func journalOf(records []record) (journal []*pb.JournalRecord) {
	for _, r := range records {
		journal = append(journal, &pb.JournalRecord{Index: r.Index, After: r.After, Name: r.Name, AtMs: r.AtMs,
			Kind: pb.RecordKind(pb.RecordKind_value["RECORD_KIND_"+r.Kind]), Path: []byte(bytesOf(r.Path)),
			Payload: []byte(r.Payload)})
	}
	return journal
}

// replayed is what a replay gives, as plain JSON.
func replayed(id durable.Identity, records []record, timers []string, seen uint64) any {
	var paths [][]byte
	for _, timer := range timers {
		paths = append(paths, []byte(bytesOf(timer)))
	}
	found := durable.Replay(id, "program", program, journalOf(records), paths, seen)
	data, _ := json.Marshal(found)
	return plain(data)
}

func plain(data []byte) (value any) {
	if err := json.Unmarshal(data, &value); err != nil {
		panic(err)
	}
	return value
}

func bytesOf(text string) string {
	data, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return string(data)
}
