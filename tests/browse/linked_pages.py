"""Follow the links of a browser: none is missing or fails."""

import re
from collections import Counter

import httpx


def linked_pages(client: httpx.Client, most: int) -> Counter[str]:
    """Read the first page and those that it leads to, ``most`` of each kind; their numbers by kind.

    The kind is the address below the run, without numbers.
    """
    seen, todo, kinds = {"/"}, ["/"], Counter[str]()
    while todo:
        response = client.get(todo.pop(0))
        assert response.status_code == 200, response.url
        for link in re.findall(r'href="([^"]+)"', response.text):
            url = response.url.join(link.replace("&amp;", "&"))
            target = f"{url.path}?{url.query.decode()}"
            kind = re.split(r"[\d-]", re.sub(r"^/run/[^/]+", "", url.path))[0]
            if target not in seen and kinds[kind] < most:
                seen.add(target)
                kinds[kind] += 1
                todo.append(target)
    return kinds
