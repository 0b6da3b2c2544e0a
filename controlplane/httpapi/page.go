package httpapi

import "github.com/better-compute/bcd/controlplane/store"

// The sizes of a page of a list.
const (
	DefaultLimit = 100
	MaxLimit     = 200
)

// limitOf returns the size of the page that a request asks for.
func limitOf(limit *int) (int, error) {
	switch {
	case limit == nil:
		return DefaultLimit, nil
	case *limit < 1 || *limit > MaxLimit:
		return 0, invalid(`field "limit" must be from 1 to %d`, MaxLimit)
	default:
		return *limit, nil
	}
}

// pageOf checks the page that a request asks for. A cursor is the id of the last item that the caller has.
func pageOf(limit *int, cursor string, prefix store.Prefix) (int, error) {
	if cursor != "" {
		if err := checkID("cursor", prefix, cursor); err != nil {
			return 0, err
		}
	}
	return limitOf(limit)
}

// listOf makes the answer of a list from one row more than the page has, where there is one.
func listOf[Row, Item any](rows []Row, limit int, key func(Row) string, item func(Row) Item) List[Item] {
	list := List[Item]{Items: []Item{}}
	if len(rows) > limit {
		rows = rows[:limit]
		list.NextCursor = key(rows[limit-1])
	}
	for _, row := range rows {
		list.Items = append(list.Items, item(row))
	}
	return list
}
