package durable

import (
	"encoding/json"
	"errors"
	"strings"

	pb "querator.test/client/querator/v1"
)

// Replay says what a replay of a journal gives, as the test vectors say it: `waits`, `end` or `differs`.
func Replay(id Identity, name string, function Function, journal []*pb.JournalRecord, timers [][]byte,
	seen uint64) map[string]any {
	c, err := newCode(id, name, function, journal[0])
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	defer c.putAway()
	var differs *Differs
	switch err := c.load(journal, "former", timers, seen); {
	case errors.As(err, &differs) && differs.Timer != "":
		return map[string]any{"differs": "timer " + Shown(differs.Timer)}
	case errors.As(err, &differs):
		return map[string]any{"differs": differs.Record}
	case err != nil:
		return map[string]any{"error": err.Error()}
	case c.end == nil:
		return map[string]any{"waits": c.waits()}
	}
	if run := c.end.GetNewRun(); run != nil {
		unread := [][2]uint64{}
		for _, one := range run.Unread {
			unread = append(unread, [2]uint64{one.First, one.Count})
		}
		return map[string]any{"end": "NEW_RUN", "payload": string(run.Arguments), "unread": unread}
	}
	end := c.end.GetClose()
	outcome := strings.TrimPrefix(end.Outcome.String(), "RECORD_KIND_")
	if end.Outcome == failed {
		failure := &Failure{}
		_ = json.Unmarshal(end.Payload, failure)
		return map[string]any{"end": outcome, "text": failure.Text}
	}
	return map[string]any{"end": outcome, "payload": string(end.Payload)}
}

// Begins says which steps begin at first, and behind each event: a step (by its name) has ended, a Record was `sent`,
// or `acknowledged`, or the `signal` s has arrived.
func Begins(id Identity, name string, function Function, start *pb.JournalRecord, happens []string) [][]string {
	c, err := newCode(id, name, function, start)
	if err != nil {
		panic(err)
	}
	defer c.putAway()
	_ = c.load([]*pb.JournalRecord{start}, function.Version, nil, 0)
	running, sent := map[string]*operation{}, &pb.RecordProgressRequest{}
	begin := func() []string {
		names := []string{}
		for _, o := range c.takeReady(c.nowMs) {
			names, running[o.name] = append(names, o.name), o
		}
		return names
	}
	found := [][]string{begin()}
	for _, event := range happens {
		switch event {
		case "sent":
			sent = &pb.RecordProgressRequest{}
			c.take(sent)
		case "acknowledged":
			c.acknowledged += len(sent.Records)
		case "signal":
			c.arrive([]*pb.JournalRecord{{Index: start.Index + 1, Kind: signal, Name: "s", Payload: []byte("1")}})
		default:
			c.ended(running[event], running[event].attempt, []byte("1"), nil, c.nowMs)
		}
		found = append(found, begin())
	}
	return found
}
