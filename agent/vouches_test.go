package agent_test

import (
	"fmt"
	"testing"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/internal/fault"
)

const vouchMAC = "b4:96:91:a7:00:01"

func TestTheNewestLeaseOfEachMACWaits(t *testing.T) {
	q := agent.NewVouches()
	first, err := q.Add(vouchMAC, 5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Add("b4:96:91:a7:00:02", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Add(vouchMAC, 4); !fault.Is(err, fault.AccessDenied) {
		t.Errorf("an older lease: %v", err)
	}
	again, err := q.Add(vouchMAC, 5)
	if err != nil || q.Count() != 2 {
		t.Errorf("the same vouch again: %v, %d wait", err, q.Count())
	}
	newer, err := q.Add(vouchMAC, 6)
	if err != nil {
		t.Fatal(err)
	}
	for _, settled := range []func() (bool, error){first, again} {
		if done, err := settled(); !done || !fault.Is(err, fault.AccessDenied) {
			t.Errorf("the older lease waits (%v) or ended with %v", !done, err)
		}
	}
	if mac, epoch := q.Next(); mac != vouchMAC || epoch != 6 {
		t.Errorf("next is %s, %d", mac, epoch)
	}
	q.PutOffNext()
	if mac, _ := q.Next(); mac == vouchMAC {
		t.Error("what was put off is next")
	}
	q.SettleNext(nil)
	q.SettleNext(nil)
	if done, err := newer(); !done || err != nil || q.Count() != 0 {
		t.Errorf("settled %v with %v, %d wait", done, err, q.Count())
	}
}

func TestSoManyVouchesWait(t *testing.T) {
	q := agent.NewVouches()
	var oldest func() (bool, error)
	for i := range agent.MaxVouches {
		settled, err := q.Add(fmt.Sprintf("b4:96:91:a7:%02x:%02x", i>>8, i&0xff), 1)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			oldest = settled
		}
	}
	if done, _ := oldest(); done {
		t.Fatal("the first of as many as fit is given up")
	}
	if _, err := q.Add("b4:96:91:a8:00:00", 1); err != nil {
		t.Fatal(err)
	}
	if done, err := oldest(); !done || !fault.Is(err, fault.Unreachable) {
		t.Errorf("the oldest waits (%v) or ended with %v", !done, err)
	}
	if mac, _ := q.Next(); q.Count() != agent.MaxVouches || mac != "b4:96:91:a7:00:01" {
		t.Errorf("%d wait, %s is next", q.Count(), mac)
	}
}
