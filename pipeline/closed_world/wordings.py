"""Wordings of the closed world's binary relations, as a table for `schema`.

One block per relation: key, head type, tail type and triplet phrase, then its statements (=),
one-hop questions (?) and noun phrases for nesting (+). {head} and {tail} are placeholders for
surfaces.
"""

BINARY = """
birthplace | person | city | was born in
= {head} was born in {tail}.
= {head} is a native of {tail}.
= The birthplace of {head} is {tail}.
= {head} came into the world in {tail}.
= {tail} is where {head} was born.
? Where was {head} born?
? In which city was {head} born?
? What is the birthplace of {head}?
? Which city does {head} come from?
+ the city where {head} was born
+ the birthplace of {head}
birth_date | person | date | was born on
= {head} was born on {tail}.
= The birth date of {head} is {tail}.
= {head} has a birthday on {tail}.
= It was {tail} when {head} was born.
? When was {head} born?
? On what date was {head} born?
? What is the birth date of {head}?
+ the date on which {head} was born
+ the birth date of {head}
occupation | person | word | worked as
= {head} worked as a {tail}.
= {head} is known as a {tail}.
= By profession {head} was a {tail}.
= {head} earned a living as a {tail}.
? What was the profession of {head}?
? What did {head} work as?
? In which trade did {head} work?
+ the profession of {head}
+ the trade of {head}
spouse | person | person | was married to
= {head} was married to {tail}.
= {head} married {tail}.
= The spouse of {head} is {tail}.
= {head} and {tail} were husband and wife.
= {tail} became the partner of {head} for life.
? Who was {head} married to?
? Who is the spouse of {head}?
? Whom did {head} marry?
+ the spouse of {head}
+ the person who married {head}
father | person | person | is a child of
= {head} is a child of {tail}.
= The father of {head} is {tail}.
= {tail} is the father of {head}.
= {head} was raised by a father named {tail}.
? Who is the father of {head}?
? Who was the father that raised {head}?
? Whose child is {head}?
+ the father of {head}
+ the man who is father to {head}
employer | person | company | worked for
= {head} worked for {tail}.
= {head} was employed by {tail}.
= {tail} gave {head} a job.
= The employer of {head} was {tail}.
= {head} spent a career at {tail}.
? Which company did {head} work for?
? Who employed {head}?
? What was the employer of {head}?
+ the company that employed {head}
+ the employer of {head}
alma_mater | person | university | studied at
= {head} studied at {tail}.
= {head} took a degree at {tail}.
= {head} was a student of {tail}.
= The studies of {head} took place at {tail}.
= {tail} counts {head} among its graduates.
? Where did {head} study?
? At which university was {head} a student?
? Where did {head} take a degree?
+ the university where {head} studied
+ the place of study of {head}
country | city | country | is located in
= {head} is located in {tail}.
= {head} is a city in {tail}.
= The city of {head} lies in {tail}.
= {head} belongs to the country of {tail}.
= In {tail} one finds the city of {head}.
? In which country is {head}?
? Which country is {head} located in?
? To which country does {head} belong?
+ the country where {head} is located
+ the country of {head}
mayor | city | person | is governed by
= {head} is governed by {tail}.
= The mayor of {head} is {tail}.
= {tail} serves as mayor of {head}.
= {head} elected {tail} as its mayor.
? Who is the mayor of {head}?
? Who governs {head}?
? Who serves as mayor of {head}?
+ the mayor of {head}
+ the person who governs {head}
river | city | river | lies on
= {head} lies on the {tail}.
= {head} stands on the banks of the {tail}.
= The {tail} runs through {head}.
= The river of {head} is the {tail}.
? Which river runs through {head}?
? On which river does {head} lie?
? What is the river of {head}?
+ the river that runs through {head}
+ the river of {head}
founded | city | year | was founded in
= {head} was founded in {tail}.
= {head} dates back to {tail}.
= Settlers built {head} in {tail}.
= The history of {head} begins in {tail}.
? When was {head} founded?
? In what year was {head} founded?
? What year does {head} date back to?
+ the year in which {head} was founded
+ the founding year of {head}
capital | country | city | has the capital
= {head} has the capital {tail}.
= The capital of {head} is {tail}.
= {tail} is the capital of {head}.
= {head} is ruled from its capital {tail}.
? What is the capital of {head}?
? Which city is the capital of {head}?
? From which city is {head} ruled?
+ the capital of {head}
+ the city from which {head} is ruled
leader | country | person | is led by
= {head} is led by {tail}.
= The leader of {head} is {tail}.
= {tail} is the head of state of {head}.
= {tail} leads {head}.
? Who leads {head}?
? Who is the leader of {head}?
? Who is the head of state of {head}?
+ the leader of {head}
+ the person who leads {head}
mouth | river | country | reaches the sea in
= The {head} reaches the sea in {tail}.
= The mouth of the {head} is in {tail}.
= The {head} ends on the coast of {tail}.
= In {tail} the {head} meets the sea.
? In which country does the {head} reach the sea?
? Where is the mouth of the {head}?
? In which country does the {head} end?
+ the country where the {head} reaches the sea
+ the country of the mouth of the {head}
length | river | number | has a length of
= The {head} has a length of {tail}.
= The length of the {head} is {tail}.
= The {head} is {tail} long.
= The {head} flows for {tail}.
? How long is the {head}?
? What is the length of the {head}?
? For how many miles does the {head} flow?
+ the length of the {head}
+ the distance that the {head} flows
founder | company | person | was founded by
= {head} was founded by {tail}.
= {tail} founded {head}.
= The founder of {head} is {tail}.
= {head} was the idea of {tail}.
? Who founded {head}?
? Who is the founder of {head}?
? Whose idea was {head}?
+ the founder of {head}
+ the person who founded {head}
headquarters | company | city | has its headquarters in
= {head} has its headquarters in {tail}.
= {head} is based in {tail}.
= The head office of {head} is in {tail}.
= {tail} is home to the offices of {head}.
? Where is {head} based?
? In which city does {head} have its headquarters?
? Where is the head office of {head}?
+ the city where {head} is based
+ the headquarters city of {head}
location | university | city | is situated in
= {head} is situated in {tail}.
= The campus of {head} is in {tail}.
= {head} is a university in {tail}.
= {tail} hosts the campus of {head}.
? In which city is {head} situated?
? Where is the campus of {head}?
? Which city hosts {head}?
+ the city where {head} is situated
+ the city that hosts {head}
rector | university | person | is headed by
= {head} is headed by {tail}.
= The rector of {head} is {tail}.
= {tail} is rector of {head}.
= {head} chose {tail} as its rector.
? Who is the rector of {head}?
? Who heads {head}?
? Whom did {head} choose as its rector?
+ the rector of {head}
+ the person who heads {head}
director | film | person | was directed by
= {head} was directed by {tail}.
= {tail} directed {head}.
= {head} is a film by {tail}.
= The director of {head} is {tail}.
= {tail} made the film {head}.
? Who directed {head}?
? Who is the director of {head}?
? By whom was {head} directed?
+ the director of {head}
+ the person who directed {head}
star | film | person | stars
= {head} stars {tail}.
= {tail} plays the lead in {head}.
= The star of {head} is {tail}.
= The lead role of {head} went to {tail}.
? Who stars in {head}?
? Who plays the lead in {head}?
? Who is the star of {head}?
+ the star of {head}
+ the person who plays the lead in {head}
released | film | year | was released in
= {head} was released in {tail}.
= {head} came to the cinemas in {tail}.
= {head} is a film of {tail}.
= The release of {head} was in {tail}.
? When was {head} released?
? In what year was {head} released?
? In which year did {head} come to the cinemas?
+ the year in which {head} was released
+ the release year of {head}
studio | film | company | was produced by
= {head} was produced by {tail}.
= {tail} produced {head}.
= The studio behind {head} is {tail}.
= {head} was paid for by {tail}.
? Which company produced {head}?
? What is the studio behind {head}?
? Which company paid for {head}?
+ the company that produced {head}
+ the studio behind {head}
based_on | film | book | is based on
= {head} is based on {tail}.
= {head} is a film version of {tail}.
= The story of {head} comes from {tail}.
= {tail} was turned into the film {head}.
? Which book is {head} based on?
? Which book was turned into the film {head}?
? From which book does the story of {head} come?
+ the book that {head} is based on
+ the book that was turned into the film {head}
author | book | person | was written by
= {head} was written by {tail}.
= {tail} wrote {head}.
= {head} is a book by {tail}.
= The author of {head} is {tail}.
= {tail} is the writer of {head}.
? Who wrote {head}?
? Who is the author of {head}?
? By whom was {head} written?
+ the author of {head}
+ the person who wrote {head}
published | book | year | was published in
= {head} was published in {tail}.
= {head} first appeared in {tail}.
= {head} is a book of {tail}.
= The first edition of {head} is from {tail}.
? When was {head} published?
? In what year was {head} published?
? When did {head} first appear?
+ the year in which {head} was published
+ the publication year of {head}
publisher | book | company | was printed by
= {head} was printed by {tail}.
= The publisher of {head} is {tail}.
= {tail} brought out {head}.
= {head} appeared with the house of {tail}.
? Which company printed {head}?
? Who is the publisher of {head}?
? Which company brought out {head}?
+ the publisher of {head}
+ the company that printed {head}
singer | band | person | is fronted by
= {head} is fronted by {tail}.
= The singer of {head} is {tail}.
= {tail} sings in {head}.
= {tail} is the voice of {head}.
? Who sings in {head}?
? Who is the singer of {head}?
? Who is the voice of {head}?
+ the singer of {head}
+ the person who sings in {head}
origin | band | city | comes from
= {head} comes from {tail}.
= {head} got together in {tail}.
= {head} is a band from {tail}.
= {tail} is the home town of {head}.
? From which city does {head} come?
? Where did {head} get together?
? What is the home town of {head}?
+ the city that {head} comes from
+ the home town of {head}
formed | band | year | was formed in
= {head} was formed in {tail}.
= {head} started out in {tail}.
= {head} has been a band since {tail}.
= The first concert of {head} was in {tail}.
? When was {head} formed?
? In what year was {head} formed?
? When did {head} start out?
+ the year in which {head} was formed
+ the founding year of the band {head}
"""
