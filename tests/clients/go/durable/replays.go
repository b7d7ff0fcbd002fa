package durable

import (
	"encoding/json"
	"errors"
	"strings"

	pb "querator.test/client/querator/v1"
)

// Replay says what a replay of a journal gives, as the test vectors say it: `waits`, `end` or `differs`.
func Replay(id Identity, name string, function Function, journal []*pb.JournalRecord, timers [][]byte) map[string]any {
	c, err := newCode(id, name, function, journal[0])
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	defer c.putAway()
	var differs *Differs
	switch err := c.load(journal, "former", timers); {
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
