package main

import (
	"errors"
	"time"
)

// since is the --since flag: a span until now, or a time. The zero value is neither.
type since struct {
	span time.Duration
	at   time.Time
}

func (s *since) String() string {
	switch {
	case !s.at.IsZero():
		return s.at.Format(time.RFC3339)
	case s.span > 0:
		return s.span.String()
	default:
		return ""
	}
}

func (s *since) Type() string { return "duration|time" }

func (s *since) Set(text string) error {
	span, err := time.ParseDuration(text)
	if err == nil {
		if span < 0 {
			return errors.New("must not be negative")
		}
		*s = since{span: span}
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return errors.New("neither a duration such as 90m or 24h, nor a time such as 2026-11-29T11:06:11Z")
	}
	*s = since{at: at}
	return nil
}

// text is the time in RFC 3339, or empty.
func (s *since) text(now time.Time) string {
	switch {
	case !s.at.IsZero():
		return s.at.UTC().Format(time.RFC3339Nano)
	case s.span > 0:
		return now.Add(-s.span).UTC().Format(time.RFC3339Nano)
	default:
		return ""
	}
}
