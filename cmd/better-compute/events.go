package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// followInterval is how often --follow asks for new events.
const followInterval = 500 * time.Millisecond

// eventsCommand is the list of events, and a group that has it as its member: both ways of asking are in use.
func eventsCommand(env Env) *cobra.Command {
	c := listEventsCommand(env, "events")
	c.Args = cobra.ArbitraryArgs
	list := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage(c, "unknown command %q for %q", args[0], c.CommandPath())
		}
		return list(c, args)
	}
	c.AddCommand(listEventsCommand(env, "list"))
	return c
}

func listEventsCommand(env Env, use string) *cobra.Command {
	var (
		to     target
		since  since
		follow bool
		list   httpapi.ListEvents
		format output
	)
	c := &cobra.Command{
		Use:   use,
		Short: "List a tenant's events, oldest first",
		Long: `List a tenant's events, oldest first. Why a join or a renewal was refused is only here; the machine is never told.

With --output json each event is one line.`,
		Example: `  better-compute events --type security.join.refused --since 1h
  better-compute events --follow --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list.Since = since.text(env.Now())
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			list.TenantID, list.Limit = to.tenant, pageSize
			show := func(e httpapi.Event) error { return printEvent(env, e, format) }
			if err := listEvents(c.Context(), api, list, follow, show); err != nil {
				return fmt.Errorf("cannot list the events: %w", err)
			}
			return nil
		},
	}
	to.addTo(c)
	c.Flags().StringVar(&list.Type, "type", "", "only events of this type, security.join.refused for instance")
	c.Flags().Var(&since, "since", "only events of this last duration, 1h for instance, or since this time, 2026-11-29T11:06:11Z for instance")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events until interrupted")
	format.addTo(c.Flags())
	return c
}

// listEvents shows all events, and with follow the ones that come until ctx ends, which is then no error. While
// following, a server that cannot be reached is asked again.
func listEvents(ctx context.Context, api *client.Client, list httpapi.ListEvents, follow bool, show func(httpapi.Event) error) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		var page httpapi.List[httpapi.Event]
		err := api.Call(ctx, "events.list", list, &page)
		switch {
		case err == nil:
		case follow && ctx.Err() != nil:
			return nil
		case follow && !first && fault.CodeOf(err).Temporary():
		default:
			return err
		}
		for _, e := range page.Items {
			if err := show(e); err != nil {
				return err
			}
			list.Cursor = strconv.FormatInt(e.Seq, 10)
		}
		if page.NextCursor != "" {
			continue
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func printEvent(env Env, e httpapi.Event, format output) error {
	if format == outputJSON {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.Stdout, "%s\n", line)
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "%s  %-28s  %s\n", e.At.UTC().Format("2006-01-02T15:04:05.000Z"), oneline.Text(e.Type), eventData(e.Data))
	return err
}

// eventData returns an event's data as key=value, the reason first: it is what a reader looks for.
func eventData(data json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return oneline.Text(string(data))
	}
	keys := slices.SortedFunc(maps.Keys(fields), func(a, b string) int {
		if (a == "reason") != (b == "reason") {
			if a == "reason" {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, 0, len(keys))
	for _, key := range keys {
		value := string(fields[key])
		var text string
		if json.Unmarshal(fields[key], &text) == nil {
			value = text
		}
		if value == "" {
			continue
		}
		// What is not plain is quoted, so that no value looks like another key or hides an escape.
		if quoted := strconv.Quote(value); strings.ContainsAny(value, " =") || len(quoted) != len(value)+2 {
			value = quoted
		}
		parts = append(parts, oneline.Text(key)+"="+oneline.Text(value))
	}
	return strings.Join(parts, " ")
}
