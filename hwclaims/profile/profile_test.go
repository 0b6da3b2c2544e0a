package profile_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/hwclaims/profile"
)

func TestParse(t *testing.T) {
	m, err := profile.Parse([]byte(`{
		"id": "x", "unknown": [1], "dt_serial": "1\u0000",
		"dmi": {"product_uuid": {"error": "EACCES"}, "board_serial": null, "product_serial": "S\u00ff\n", "chassis_type": 23, "chassis_serial": {"error": "ENOENT"}},
		"nics": [{"name": "eno1", "permaddr": null, "addr_assign_type": 2, "later": true}],
		"gpus": [{"uuid": "GPU-1"}], "expect": {"trusted": true}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	two := 2
	want := profile.Machine{
		ID: "x", DeviceTreeSerial: "1\x00",
		DMI: map[string]profile.Field{
			"product_uuid":   {Present: true, Error: "EACCES"},
			"board_serial":   {},
			"product_serial": {Present: true, Bytes: "S\xff\n"},
			"chassis_type":   {Present: true, Bytes: "23"},
			"chassis_serial": {},
		},
		NICs: []profile.NIC{{Name: "eno1", AddrAssignType: &two}},
		GPUs: []profile.GPU{{UUID: "GPU-1"}},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m, err := profile.Parse([]byte(`{"dmi": null}`)); err != nil || m.DMI != nil {
		t.Errorf("dmi null: %+v (%v)", m, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "no object": "[]", "list": `{"dmi":{"product_serial":[7]}}`, "not Latin-1": `{"dmi":{"product_serial":"\u0141"}}`,
		"error is no text": `{"dmi":{"product_serial":{"error":1}}}`,
	} {
		if m, err := profile.Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}
