"""Which addresses may be fetched: only those of the public internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

# Forms that carry an IPv4 address or a tunnel inside: what a router makes of them is not ours to guess.
WRAPPING_NETWORKS: tuple[IPv6Network, ...] = tuple(
    IPv6Network(network)
    for network in (
        "::/96",  # IPv4-compatible, long abandoned
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 for local use
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "fec0::/10",  # site-local
    )
)
SHARED_IPV4 = ip_network("100.64.0.0/10")  # carrier-grade NAT


def is_public(address: str) -> bool:
    """Whether a numeric address, as a resolver gives it, belongs to the public internet."""
    try:
        ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if any(ip in network for network in WRAPPING_NETWORKS):
            return False
    elif ip in SHARED_IPV4:
        return False
    return ip.is_global and not (
        ip.is_private
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_reserved
        or ip.is_unspecified
    )
