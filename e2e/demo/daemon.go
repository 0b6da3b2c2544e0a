package main

import (
	"context"
	"encoding/json"
	"time"
)

// entry is a line of bcd's log.
type entry struct {
	Time        time.Time `json:"time"`
	Level       string    `json:"level"`
	Message     string    `json:"msg"`
	Node        string    `json:"node"`
	Session     string    `json:"session"`
	Error       string    `json:"error"`
	Certificate struct {
		Serial   string    `json:"serial"`
		NotAfter time.Time `json:"not_after"`
		RenewAt  time.Time `json:"renew_at"`
	} `json:"certificate"`
}

// watch reads the daemon's log, shows it as it comes, and returns the first entry with the message.
func (w *workshop) watch(ctx context.Context, daemon *process, message string) (entry, error) {
	for {
		line, err := daemon.next(ctx)
		if err != nil {
			return entry{}, err
		}
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return entry{}, daemon.fail("not a line of the log: %q", line)
		}
		w.show(e)
		if e.Level == "WARN" || e.Level == "ERROR" {
			return entry{}, daemon.fail("%s: %s", e.Message, e.Error)
		}
		if e.Message == message {
			return e, nil
		}
	}
}

// show prints an entry of the log in a line.
func (w *workshop) show(e entry) {
	text := e.Message
	switch e.Message {
	case "renewed":
		text = w.paint(green, "renewed") + "       certificate " + short(e.Certificate.Serial) + ", good until " + clock(e.Certificate.NotAfter)
	case "open session":
		text = "open session  " + e.Session + ", with certificate " + short(e.Certificate.Serial)
	}
	w.line("   %s %s", w.paint(dim, "bcd "+e.Time.Local().Format("15:04:05.0")), text)
}

// short is the start of a serial: enough to tell it from the others.
func short(serial string) string { return serial[:min(8, len(serial))] + "…" }

func clock(t time.Time) string { return t.Local().Format(time.TimeOnly) }
