package httpapi

import (
	"context"
	"strconv"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// listEvents lists the events of the caller's tenant.
func (a *API) listEvents(ctx context.Context, caller Caller, in ListEvents) (List[Event], error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionReadEvents, resourceTenant+in.TenantID); err != nil {
		return List[Event]{}, err
	}
	limit, err := limitOf(in.Limit)
	if err != nil {
		return List[Event]{}, err
	}
	filter := store.EventFilter{Type: events.Type(in.Type)}
	if in.Since != "" {
		if filter.Since, err = time.Parse(time.RFC3339, in.Since); err != nil {
			return List[Event]{}, invalid(`field "since" must be a time such as 2026-11-29T11:06:11Z`)
		}
	}
	if in.Cursor != "" {
		if filter.After, err = strconv.ParseInt(in.Cursor, 10, 64); err != nil || filter.After < 0 {
			return List[Event]{}, invalid(`field "cursor" must be the seq of an event`)
		}
	}
	var found []events.Event
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		found, err = tx.EventsMatching(in.TenantID, filter, limit+1)
		return err
	})
	return listOf(found, limit, func(e events.Event) string { return strconv.FormatInt(e.Seq, 10) }, func(e events.Event) Event {
		return Event{Seq: e.Seq, Type: string(e.Type), At: e.At, Data: e.Data}
	}), err
}
