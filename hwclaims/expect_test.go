package hwclaims_test

import (
	"strings"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
)

func expectClaims() hwclaims.Claims {
	return hwclaims.Claims{
		ProductUUID: uuid1, ProductSerial: "SN-7701", BoardSerial: "BRD0X42", ChassisSerial: "CHS9X17", DeviceTreeSerial: "10000000abcd0001",
		MACs: []string{mac1, "02:fc:00:00:00:02"}, GPUUUIDs: []string{gpu1},
	}
}

// Req: HC-004 HC-006 HC-007 HC-011 HC-012 HC-024
func TestExpectMatches(t *testing.T) {
	for name, e := range map[string]hwclaims.Expect{
		"uuid":               {ProductUUID: uuid1},
		"uuid upper":         {ProductUUID: strings.ToUpper(uuid1)},
		"uuid undashed":      {ProductUUID: strings.ToUpper(strings.ReplaceAll(uuid1, "-", ""))},
		"uuid other order":   {ProductUUID: "44454c4c-5800-1051-8034-b7c04f543233"},
		"product serial":     {Serial: "sn-7701"},
		"board serial":       {Serial: " brd0x42 "},
		"chassis serial":     {Serial: "CHS9X17"},
		"device tree serial": {Serial: "10000000ABCD0001"},
		"mac":                {MAC: mac1},
		"mac upper":          {MAC: "70:B5:E8:00:50:28"},
		"mac dashes":         {MAC: "70-b5-e8-00-50-28"},
		"gpu":                {GPUUUID: gpu1},
		"gpu lower":          {GPUUUID: strings.ToLower(gpu1)},
		"gpu upper":          {GPUUUID: strings.ToUpper(gpu1)},
		"all":                {ProductUUID: uuid1, Serial: "CHS9X17", MAC: mac1, GPUUUID: gpu1},
	} {
		if !e.Match(expectClaims()) {
			t.Errorf("%s: no match", name)
		}
	}
}

// The claims' side is normalised as the token's is.
//
// Req: HC-004 HC-007 HC-011 HC-012 HC-024
func TestExpectMatchesOddClaims(t *testing.T) {
	e := hwclaims.Expect{ProductUUID: uuid1, Serial: "SN-7701", MAC: mac1, GPUUUID: gpu1}
	for _, mac := range []string{"70-B5-E8-00-50-28", "70b5.e800.5028", "70b5e8005028"} {
		c := hwclaims.Claims{
			ProductUUID: strings.ToUpper(strings.ReplaceAll(uuid1, "-", "")), BoardSerial: "sn-7701\x00", MACs: []string{mac},
			GPUUUIDs: []string{strings.ToLower(gpu1)},
		}
		if !e.Match(c) {
			t.Errorf("no match with %+v", c)
		}
	}
}

// Req: HC-005 HC-008 HC-009 HC-010
func TestExpectDoesNotMatch(t *testing.T) {
	zero := "00000000-0000-0000-0000-000000000000"
	filler := hwclaims.Claims{
		ProductUUID: zero, ProductSerial: "Default string", BoardSerial: "42",
		MACs: []string{"02:fc:00:00:00:01", "00:00:00:00:00:00"}, GPUUUIDs: []string{"GPU-????????-????-????-????-????????????"},
	}
	for name, test := range map[string]struct {
		e hwclaims.Expect
		c hwclaims.Claims
	}{
		"empty":                     {hwclaims.Expect{}, expectClaims()},
		"placeholder uuid":          {hwclaims.Expect{ProductUUID: zero}, filler},
		"placeholder serial":        {hwclaims.Expect{Serial: "Default string"}, filler},
		"short serial":              {hwclaims.Expect{Serial: "42"}, filler},
		"local mac":                 {hwclaims.Expect{MAC: "02:fc:00:00:00:02"}, expectClaims()},
		"zero mac":                  {hwclaims.Expect{MAC: "00:00:00:00:00:00"}, filler},
		"question marks":            {hwclaims.Expect{GPUUUID: "GPU-????????-????-????-????-????????????"}, filler},
		"other uuid":                {hwclaims.Expect{ProductUUID: "4c4c4544-0058-5110-8034-b7c04f543234"}, expectClaims()},
		"other serial":              {hwclaims.Expect{Serial: "SN-7702"}, expectClaims()},
		"other mac":                 {hwclaims.Expect{MAC: "70:b5:e8:00:50:29"}, expectClaims()},
		"other gpu":                 {hwclaims.Expect{GPUUUID: "GPU-1c0ffee0-0001-4a2b-8c3d-0123456789ac"}, expectClaims()},
		"one right and one wrong":   {hwclaims.Expect{ProductUUID: uuid1, Serial: "SN-7702"}, expectClaims()},
		"serial against an empty":   {hwclaims.Expect{Serial: " "}, hwclaims.Claims{}},
		"host name is no serial":    {hwclaims.Expect{Serial: "node7731"}, hwclaims.Claims{Hostname: "node7731"}},
		"serial that is the uuid":   {hwclaims.Expect{Serial: uuid1}, expectClaims()},
		"mac of no claimed network": {hwclaims.Expect{MAC: mac1}, hwclaims.Claims{ProductUUID: uuid1}},
	} {
		if test.e.Match(test.c) {
			t.Errorf("%s: matches", name)
		}
	}
}

// A card that is not physical, or an address that is not permanent, never becomes a claim, so that no token matches it.
//
// Req: HC-008 HC-009 HC-010
func TestExpectMACOfCollectedClaims(t *testing.T) {
	m, _ := machine(t, machinesDir+"/k8s-bonded-node.json")
	c := hwclaims.CollectProfile(m).Claims
	for mac, want := range map[string]bool{
		"b4:96:91:00:00:10": true,  // a bond's first port
		"b4:96:91:00:00:11": true,  // the permanent address of its second, which shows the first one's
		"56:c4:38:00:00:5c": false, // a virtual function
		"02:42:bc:00:00:24": false, // docker0
		"ee:ee:ee:ee:ee:ee": false, // a pod's
	} {
		if got := (hwclaims.Expect{MAC: mac}).Match(c); got != want {
			t.Errorf("expect.mac %s: match = %v, want %v", mac, got, want)
		}
	}
}

// Req: JT-032 JT-033 JT-034
func TestValidateExpect(t *testing.T) {
	for name, e := range map[string]hwclaims.Expect{
		"nothing":       {},
		"uuid":          {ProductUUID: "4c4c4544"},
		"blank serial":  {Serial: " \t"},
		"long serial":   {Serial: strings.Repeat("7", 257)},
		"escape":        {Serial: "\x1b[31m7731"},
		"dashes":        {MAC: "70-b5-e8-00-50-28"},
		"dots":          {MAC: "70b5.e800.5028"},
		"bare mac":      {MAC: "70b5e8005028"},
		"short mac":     {MAC: "70:b5:e8:00:50"},
		"spaces":        {MAC: " 70:b5:e8:00:50:28"},
		"MIG":           {GPUUUID: "MIG-1c0ffee0-0001-4a2b-8c3d-0123456789ab"},
		"bare gpu":      {GPUUUID: "1c0ffee0-0001-4a2b-8c3d-0123456789ab"},
		"prefix alone":  {GPUUUID: "GPU-"},
		"right + wrong": {Serial: "SN-7701", MAC: "x"},
	} {
		if hwclaims.ValidateExpect(e) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, e := range map[string]hwclaims.Expect{
		"uuid": {ProductUUID: strings.ToUpper(uuid1)}, "serial": {Serial: "sn-7701"}, "mac": {MAC: "70:B5:E8:00:50:28"}, "gpu": {GPUUUID: gpu1},
		// well formed, matches nothing: the join is refused, not the token
		"placeholder": {ProductUUID: "00000000-0000-0000-0000-000000000000"},
	} {
		if err := hwclaims.ValidateExpect(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
