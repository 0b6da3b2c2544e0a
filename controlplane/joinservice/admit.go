package joinservice

import (
	"errors"
	"slices"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// decision is the admission of one request. It is decided twice, see [Service.admit].
type decision struct {
	req        *Request
	attestor   string
	credential Credential
	rootTenant string
	// newNode is the id that the machine gets if it is a new node.
	newNode string
}

// plan is what an admission will be.
type plan struct {
	grant *Grant
	// machine is the node that the machine is, before the admission; nil is none.
	machine *store.Node
	// node is the node as the admission leaves it, but for adoption.
	node store.Node
	// acceptance says that the node's pool runs acceptance checks.
	acceptance bool
	// repeat is the certificate of an earlier admission of the same request.
	repeat *store.Cert
	// approval is the join request whose approval the admission uses up; nil is none.
	approval *store.JoinRequest
	// deferral is the join request that a person must decide: then nothing is admitted. ask says that it must be written: as
	// a new one where it has no id, else in the place of what the machine said before.
	deferral *store.JoinRequest
	ask      bool
}

// same reports whether two plans are of the same machine in the same state and end in the same certificate.
func (p *plan) same(other *plan) bool {
	if (p.machine == nil) != (other.machine == nil) || (p.approval == nil) != (other.approval == nil) ||
		p.repeat != nil || other.repeat != nil || p.deferral != nil || other.deferral != nil {
		return false
	}
	if p.machine != nil &&
		(p.machine.ID != other.machine.ID || p.machine.IdentityGeneration != other.machine.IdentityGeneration) {
		return false
	}
	return p.node.ID == other.node.ID && p.node.IdentityGeneration == other.node.IdentityGeneration &&
		p.node.SiteID == other.node.SiteID && certRole(p.node) == certRole(other.node)
}

// decide runs the checks in their order. It only reads.
func (d *decision) decide(tx *store.Tx) (*plan, error) {
	g, err := d.credential.Prove(tx)
	if err != nil {
		return nil, err
	}
	p, err := d.decideFor(tx, g)
	return p, g.tell(err)
}

func (d *decision) decideFor(tx *store.Tx, g *Grant) (*plan, error) {
	if p, err := d.replay(tx, g); p != nil || err != nil {
		return p, err
	}
	met, err := d.met(tx, g)
	if err != nil {
		return nil, err
	}
	g.Remembered = waits(met)
	if err := d.credential.Check(tx, g); err != nil {
		return nil, err
	}
	if d.req.body.GetNodeId() != g.NodeID {
		return nil, Refuse("join:node-id")
	}
	if g.Succeeds != nil {
		return d.succeed(tx, g)
	}
	if g.Expect != nil && !g.Expect.Match(d.req.claims) {
		return nil, Refuse("join:expect")
	}
	if !d.req.hardware.Trusted && !g.PlaceholderOK && !approved(met) && !g.Approval.asks(false) {
		return nil, Refuse("join:placeholder-hardware")
	}
	if approved(met) && g.PoolID == "" {
		g.PoolID = met.PoolID
	}
	machine, err := d.machine(tx, g)
	if err != nil {
		return nil, err
	}
	if machine != nil {
		g.PoolID = machine.PoolID
	}
	if g.PoolID == "" && g.Approval != nil && !g.Approval.asks(machine != nil) {
		return nil, Refuse("join:pool")
	}
	place, err := d.place(tx, g)
	if err != nil {
		return nil, err
	}
	p := &plan{grant: g, machine: machine, acceptance: place.acceptance}
	p.node = store.Node{
		ID: d.newNode, TenantID: g.TenantID, PoolID: g.PoolID, SiteID: g.SiteID, Role: d.req.Role(), IdentityGeneration: 1,
		HardwareKey: d.req.hardware.HardwareKey, HardwareKeyTrusted: d.req.hardware.Trusted,
	}
	if g.EKSHA256 != nil {
		p.node.EKSHA256 = g.EKSHA256[:]
	}
	if machine != nil {
		now := p.node
		p.node = *machine
		p.node.IdentityGeneration++
		if g.EKSHA256 != nil || g.NodeID != "" {
			// The TPM or the token names the machine, whatever was changed around it. It is known by what it shows now: by
			// what it showed before, its next join would be another node's.
			p.node.HardwareKey, p.node.HardwareKeyTrusted = now.HardwareKey, now.HardwareKeyTrusted
		}
	}
	p.node.State, p.node.Claims = store.NodeAdopting, d.req.claims
	p.node.Role, p.node.Trust = d.req.Role(), trustOf(g, place, d.rootTenant)
	return p, d.ask(tx, g, p, met)
}

// succeed plans the next certificate of a node that stays what it is.
func (d *decision) succeed(tx *store.Tx, g *Grant) (*plan, error) {
	if _, err := d.place(tx, g); err != nil {
		return nil, err
	}
	return &plan{grant: g, machine: &g.Succeeds.Node, node: g.Succeeds.Node}, nil
}

// machine returns the node that the machine is already, if it may become it again.
func (d *decision) machine(tx *store.Tx, g *Grant) (*store.Node, error) {
	var n store.Node
	err := store.ErrNotFound
	if d.req.hardware.Trusted {
		n, err = tx.NodeByHardwareKey(d.req.hardware.HardwareKey)
	}
	if g.EKSHA256 != nil && (err == nil || errors.Is(err, store.ErrNotFound)) {
		n, err = boundNode(tx, g, n.ID)
	}
	if errors.Is(err, store.ErrNotFound) {
		if g.NodeID == "" {
			return nil, nil //nolint:nilnil // a new machine
		}
		// The credential says which node this machine is.
		if n, err = tx.Node(g.NodeID); errors.Is(err, store.ErrNotFound) {
			return nil, Refuse("join:reclaim")
		}
	}
	if err != nil {
		return nil, err
	}
	// Where a person may decide, a credential without a pool is good for the pool that the machine is in.
	elsewhere := n.PoolID != g.PoolID && (g.PoolID != "" || g.Approval == nil)
	if !g.AllowReclaim || g.NodeID != "" && n.ID != g.NodeID || !n.RetiredAt.IsZero() || !n.DeletedAt.IsZero() ||
		n.TenantID != g.TenantID || n.SiteID != g.SiteID || elsewhere || !d.becomes(n, g) {
		return nil, Refuse("join:reclaim")
	}
	return &n, nil
}

// boundNode returns the node that is bound to the machine's endorsement key. byHardware is the node that its claims name, or
// empty: another one than the key's is somebody else's, or this machine's before its TPM was replaced, and nobody can tell.
//
// A TPM has several endorsement keys, and its maker's certificates for more than one of them. It has one attestation key: where
// that is a node's, by another endorsement key, the machine is no second node.
func boundNode(tx *store.Tx, g *Grant, byHardware string) (store.Node, error) {
	n, err := tx.NodeByEK(*g.EKSHA256)
	if errors.Is(err, store.ErrNotFound) {
		for _, statement := range g.Statements {
			switch _, err := tx.NodeByStatement(statement); {
			case err == nil:
				return store.Node{}, Refuse("join:reclaim")
			case !errors.Is(err, store.ErrNotFound):
				return store.Node{}, err
			}
		}
	}
	if (err == nil || errors.Is(err, store.ErrNotFound)) && byHardware != "" && n.ID != byHardware {
		return store.Node{}, Refuse("join:reclaim")
	}
	return n, err
}

// becomes reports whether the node may have the role that is asked for: its own, or that of a node where a ramdisk installed
// the operating system which joins now, by a credential for this very node.
func (d *decision) becomes(n store.Node, g *Grant) bool {
	asked := d.req.Role()
	return n.Role == asked || n.Role == store.RoleRamdisk && asked == store.RoleNode && g.NodeID == n.ID
}

// place is where a grant lets the machine land.
type place struct {
	pool       *store.Pool // nil for a site agent
	site       store.Site
	acceptance bool
}

// place checks pool, tenant, site and the pool's policy.
func (d *decision) place(tx *store.Tx, g *Grant) (place, error) {
	var at place
	owner := ""
	if g.PoolID != "" {
		pool, err := tx.Pool(g.PoolID)
		if errors.Is(err, store.ErrNotFound) || err == nil && (pool.Agent != store.AgentBCD || !pool.ArchivedAt.IsZero()) {
			return at, Refuse("join:pool")
		}
		if err != nil {
			return at, err
		}
		at.pool, at.acceptance, owner = &pool, pool.Acceptance, pool.TenantID
	}
	site, err := tx.Site(g.SiteID)
	noSite := errors.Is(err, store.ErrNotFound)
	if err != nil && !noSite {
		return at, err
	}
	if at.pool == nil {
		owner = site.TenantID
	}
	asked := d.req.body.GetSite()
	switch {
	case owner != g.TenantID && !(at.pool == nil && noSite):
		return at, Refuse("join:tenant")
	case noSite,
		at.pool != nil && at.pool.SiteID != g.SiteID,
		asked != "" && asked != g.SiteID,
		len(d.req.gatewaySites) > 0 && !slices.Contains(d.req.gatewaySites, g.SiteID):
		return at, Refuse("join:site")
	case at.pool != nil && !at.pool.Policy.Admits(d.attestor):
		return at, Refuse("join:pool-attestor")
	}
	at.site = site
	return at, nil
}

// record writes an admission: the use that it costs, the node, its certificate and what is told of it.
func (d *decision) record(tx *store.Tx, p *plan, cert store.Cert) error {
	if err := d.credential.Spend(tx, p.grant); err != nil {
		return p.grant.tell(err)
	}
	if p.approval != nil {
		if err := tx.ConsumeJoinRequest(p.approval.ID); err != nil {
			return err
		}
	}
	if p.grant.Proof != nil {
		if err := tx.UseProof(*p.grant.Proof, proofsKept); err != nil {
			return err
		}
	}
	if p.grant.Succeeds != nil {
		return d.recordSuccession(tx, p, cert)
	}
	reclaim := p.machine != nil
	if reclaim {
		if err := d.reclaim(tx, p); err != nil {
			return err
		}
	} else if err := tx.InsertNode(p.node); err != nil {
		return err
	}
	if err := tx.PutNodeAuthz(p.node); err != nil {
		return err
	}
	if err := d.recordCert(tx, p, cert, reclaim); err != nil {
		return err
	}
	if p.acceptance && p.node.Role != store.RoleSite {
		return nil // the node's first Hello queues it: until then there is nobody to ask
	}
	return adopt(tx, p.node, p.grant.actor(p.node.ID))
}

// recordSuccession writes the next certificate of a node that stays what it is.
func (d *decision) recordSuccession(tx *store.Tx, p *plan, cert store.Cert) error {
	leaf := p.grant.Succeeds.Leaf
	_, inUse, err := successorsOf(tx, leaf, d.req.csrSHA256)
	if err != nil {
		return err
	}
	if err := markUsed(tx, leaf); err != nil {
		return err
	}
	if err := d.recordCert(tx, p, cert, false); err != nil {
		return err
	}
	return tellForked(tx, p.node, leaf, inUse, cert.Serial)
}

// recordCert writes an admission's certificate, that the request was admitted, and what is told of it.
func (d *decision) recordCert(tx *store.Tx, p *plan, cert store.Cert, reclaim bool) error {
	if err := tx.InsertCert(cert); err != nil {
		return err
	}
	if err := tx.InsertJoin(store.Join{
		CSRSHA256: d.req.csrSHA256, Attestor: d.attestor, TokenID: p.grant.TokenID, Role: d.req.Role(),
		NodeID: p.node.ID, PoolID: p.node.PoolID, Serial: cert.Serial,
	}); err != nil {
		return err
	}
	joined := events.NodeJoined{
		NodeID: p.node.ID, PoolID: p.node.PoolID, SiteID: p.node.SiteID, Role: p.node.Role, Attestor: d.attestor,
		Reclaim: reclaim, HardwareKeyTrusted: p.node.HardwareKeyTrusted, Serial: cert.Serial,
		IdentityGeneration: p.node.IdentityGeneration, NodeKey: p.grant.nodeKey(),
	}
	if p.grant.EKSHA256 != nil {
		joined.EKSHA256 = digestText(*p.grant.EKSHA256)
	}
	if err := tx.Publish(p.node.TenantID, joined); err != nil {
		return err
	}
	action := events.ActionNodeJoined
	if reclaim {
		action = events.ActionNodeReclaimed
	}
	return tx.Record(p.node.TenantID, action, p.grant.actor(p.node.ID), p.node.ID, joined)
}

// reclaim makes the machine the node that it was: with a new generation, which no older certificate belongs to.
func (d *decision) reclaim(tx *store.Tx, p *plan) error {
	revoked, err := tx.RevokeCerts(p.node.ID, p.machine.IdentityGeneration, "reclaimed")
	if err != nil {
		return err
	}
	for _, c := range revoked {
		if err := tx.Publish(p.node.TenantID, events.CertificateRevoked{
			NodeID: c.NodeID, Serial: c.Serial, IdentityGeneration: c.Generation, Reason: c.RevokeReason,
		}); err != nil {
			return err
		}
	}
	return tx.ReclaimNode(p.node)
}

// adopt queues a node for its controllers and makes it ready for work.
func adopt(tx *store.Tx, n store.Node, actor string) error {
	if err := tx.Enqueue(n.ID, "joined"); err != nil {
		return err
	}
	if err := tx.SetNodeState(n.ID, store.NodeAdopted); err != nil {
		return err
	}
	adopted := events.NodeAdopted{NodeID: n.ID}
	if err := tx.Publish(n.TenantID, adopted); err != nil {
		return err
	}
	return tx.Record(n.TenantID, events.ActionNodeAdopted, actor, n.ID, adopted)
}
