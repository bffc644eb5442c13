package trajectory

import (
	"slices"

	"github.com/rlfleet/rlfleet/policy"
)

// checkAcks requires that everything a worker was told is safe is in the record (I3).
func (v *verifier) checkAcks(path string) error {
	acks, bad, err := readAcks(path)
	if err != nil {
		return err
	}
	for _, line := range bad {
		v.find("I3", "acknowledgements", "%s", line)
	}
	for _, a := range acks {
		if a.Run != v.run.ID {
			continue
		}
		v.report.Acks++
		if why := v.missing(a); why != "" {
			v.find("I3", a.where(), "was acknowledged as %s and %s", a.Kind, why)
		}
	}
	return nil
}

// missing says what of an acknowledgement the record lacks, or "".
func (v *verifier) missing(a ack) string {
	const absent = "is not in the manifest"
	other := false
	switch a.Kind {
	case ackSealed:
		at := v.attempts[a.where()]
		if at == nil || at.Sealed == nil {
			return absent
		}
		if got := policy.Digest(at.Sealed.Steps.GetObject()); got != a.Steps {
			return "is in the manifest with steps " + string(got) + ", not " + string(a.Steps)
		}
	case ackSettled:
		at := v.attempts[a.where()]
		if at == nil || at.Settled == nil {
			return absent
		}
		if at.Settled.Verdict != string(a.Verdict) || at.Settled.VerdictRow.GetObject() != string(a.Row) {
			return "is in the manifest with another verdict"
		}
	case ackCommitted:
		for _, st := range slices.Concat(v.run.undone, v.run.Steps) {
			if st.Step == a.Step {
				if st.Manifest == string(a.Manifest) && st.Ledger == string(a.Ledger) {
					return ""
				}
				other = true
			}
		}
		if other {
			return "is in the manifest with another checkpoint or ledger"
		}
		return absent
	default:
		return "is of no kind that this program knows"
	}
	return ""
}
