"""Follow the links of a browser: none is missing or fails."""

import re
from collections import Counter, defaultdict

import httpx


def linked_pages(client: httpx.Client, most: int) -> dict[str, list[str]]:
    """Read the first page and those that it leads to, ``most`` of each kind; their texts by kind.

    The kind is the address below the run, without numbers.
    """
    seen, todo, texts = {"/"}, ["/"], defaultdict[str, list[str]](list)
    queued = Counter[str]()
    while todo:
        address = todo.pop(0)
        response = client.get(address)
        assert response.status_code == 200, response.url
        texts[kind_of(address.partition("?")[0])].append(response.text)
        for link in re.findall(r'href="([^"]+)"', response.text):
            url = response.url.join(link.replace("&amp;", "&"))
            target = f"{url.path}?{url.query.decode()}"
            if target not in seen and queued[kind_of(url.path)] < most:
                seen.add(target)
                queued[kind_of(url.path)] += 1
                todo.append(target)
    return texts


def kind_of(path: str) -> str:
    return re.split(r"[\d-]", re.sub(r"^/run/[^/]+", "", path))[0]
