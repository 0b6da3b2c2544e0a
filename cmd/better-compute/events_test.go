package main

import (
	"encoding/json"
	"testing"
)

func TestEventData(t *testing.T) {
	for data, want := range map[string]string{
		`{"b":1,"a":"x","reason":"join:expect"}`: `reason=join:expect a=x b=1`,
		`{"a":"x y"}`:                            `a="x y"`,
		`{"a":"x=y"}`:                            `a="x=y"`,
		`{"a":"x\"y"}`:                           `a="x\"y"`,
		`{"a":"x\\ny"}`:                          `a="x\\ny"`,
		`{"a":"\u001b[2J"}`:                      `a="\x1b[2J"`,
		`{"a":"","b":false}`:                     `b=false`,
		`{"a":[1,"x"]}`:                          `a="[1,\"x\"]"`,
		`{"a\n":"é"}`:                            `a\n=é`,
		`[1]`:                                    `[1]`,
		`{}`:                                     ``,
	} {
		if got := eventData(json.RawMessage(data)); got != want {
			t.Errorf("%s: %s, want %s", data, got, want)
		}
	}
}
