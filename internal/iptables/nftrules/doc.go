// Package nftrules makes, finds and deletes rules of the nf_tables variant of iptables
// by messages to the kernel, without a process. iptables lists, checks and deletes
// these rules as its own, and this package recognizes those that iptables made.
//
// It knows the options of the rules that the reference plugins make. For anything else,
// such as the conditions of a configuration, it returns [ErrUnknown] and changes
// nothing; then only the tool can do it.
//
// The tool writes some rules in another way in each version:
//
//	         -s 10.1.0.0/16   -p before or after -s, -d   --dport     -m mark
//	1.8.5    4 bytes, mask    before                      match tcp   match mark
//	1.8.7    2 bytes          before                      match tcp   match mark
//	1.8.9    2 bytes          before                      payload     meta mark
//	1.8.11   2 bytes          after                       payload     meta mark
//
// This package reads them all, and writes those of 1.8.5, which each later version
// reads. An earlier version takes rules of a later one for rules without a port and
// without a mark: images of containers bring their own version, so the host's is not the
// only one that reads.
//
// A rule is parsed from words (parse), encoded for the kernel (encode), and decoded from
// its listing (decode). Two rules are the same if they are equal after parsing and
// decoding. [Apply] runs commands in one transaction, and [Look] finds rules.
package nftrules
