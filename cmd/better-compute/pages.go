package main

import (
	"context"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
)

// pageSize is the limit that lists are asked with.
var pageSize = func() *int { n := httpapi.MaxLimit; return &n }()

// every calls a list until its last page and returns all items, appended to items. request makes the request of a page.
func every[T any](ctx context.Context, api *client.Client, method string, request func(cursor string) any, items []T) ([]T, error) {
	cursor := ""
	for {
		var page httpapi.List[T]
		if err := api.Call(ctx, method, request(cursor), &page); err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if page.NextCursor == "" {
			return items, nil
		}
		cursor = page.NextCursor
	}
}
